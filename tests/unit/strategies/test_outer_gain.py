"""What is measured of outer steps: against closed forms, in records, and across a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.buckets.flat import layout_of
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat
from quorate.records.records import records_of, rows
from quorate.replica.outer_optimizer import updater
from quorate.strategies import strategies
from quorate.strategies.parts.outer_steps import OuterOptimizer
from tests.support.local_trainings import loss, net
from tests.support.scene import Scene

N = 600


class Alone:
    """A worker, as far as an outer step sees it."""

    def __init__(self) -> None:
        self.updater = updater
        self.noted: list[Mapping[str, Any]] = []

    def note_outer_step(self, fragment: int, measured: Mapping[str, Any] | None, *, reach: float | None) -> None:
        assert measured is not None
        self.noted.append(measured)


def vector(x: Tensor) -> Flat:
    return Flat([x.clone()], layout_of([("x", nn.Parameter(x))]))


def noted(gradients: list[Tensor], outer: OuterOptimizer) -> list[Mapping[str, Any]]:
    """Of the outer steps on these gradients, one after the other."""
    worker: Any = Alone()
    point, memory = vector(torch.zeros_like(gradients[0])), dict[str, Any]()
    for gradient in gradients:
        outer.step(worker, point, vector(gradient), memory, 0)
    found: list[Mapping[str, Any]] = worker.noted
    return found


def sgd(momentum: float, *, is_nesterov: bool, **more: Any) -> OuterOptimizer:
    return OuterOptimizer("sgd", 0.7, momentum, is_nesterov=is_nesterov, device="own", **more)


def drawn(count: int, rho: float, *, size: int = N) -> list[Tensor]:
    """Numbers of length 1 each, of which neighbours have the cosine `rho` up to chance."""
    draw = torch.Generator().manual_seed(2)
    found = [torch.randn(size, generator=draw)]
    for _ in range(count - 1):
        found.append(rho * found[-1] + math.sqrt(1 - rho * rho) * torch.randn(size, generator=draw))
    return found


@pytest.mark.parametrize("is_nesterov", [False, True])
@pytest.mark.parametrize("mu", [0.0, 0.8])
class TestClosedForms:
    def test_equal_gradients_are_gone_along_only(self, mu: float, is_nesterov: bool) -> None:
        first, *_, last = noted([torch.arange(1.0, 9.0)] * 60, sgd(mu, is_nesterov=is_nesterov))
        assert first["rho"] is None
        assert first["gain"] == pytest.approx(1 + mu * is_nesterov)
        assert last["gain"] == pytest.approx(1 / (1 - mu), rel=1e-4)
        assert last["transverse"] == pytest.approx(0.0, abs=1e-4)
        assert last["rho"] == pytest.approx(1.0, abs=1e-5)
        assert last["norm"] == pytest.approx(float(torch.arange(1.0, 9.0).norm()))

    def test_turning_gradients_take_from_each_other(self, mu: float, is_nesterov: bool) -> None:
        there = torch.arange(1.0, 9.0)
        *_, last = noted([there, -there] * 30, sgd(mu, is_nesterov=is_nesterov))
        assert last["rho"] == last["smoothed_rho"] == pytest.approx(-1.0, abs=1e-5)
        assert last["gain"] == pytest.approx(1 + mu / (1 + mu) if is_nesterov else 1 / (1 + mu), rel=1e-4)
        assert last["transverse"] == pytest.approx(0.0, abs=1e-4)

    def test_what_has_nothing_in_common_is_transverse(self, mu: float, is_nesterov: bool) -> None:
        *_, last = noted(list(3.0 * torch.eye(60)), sgd(mu, is_nesterov=is_nesterov))
        assert last["rho"] == 0.0
        assert last["gain"] == pytest.approx(1 + mu * is_nesterov)
        across = mu / math.sqrt(1 - mu * mu)
        assert last["transverse"] == pytest.approx(mu * across if is_nesterov else across, rel=1e-4, abs=1e-6)

    def test_correlated_ones_have_the_gain_of_a_filter(self, mu: float, is_nesterov: bool) -> None:
        rho = 0.6
        found = noted(drawn(150, rho), sgd(mu, is_nesterov=is_nesterov))[30:]
        mean = {name: sum(row[name] for row in found) / len(found) for name in ("rho", "gain", "transverse")}
        along, whole = 1 / (1 - mu * rho), (1 + mu * rho) / (1 - mu * mu) / (1 - mu * rho)
        across = math.sqrt(whole - along * along)
        assert mean["rho"] == pytest.approx(rho, abs=0.03)
        assert mean["gain"] == pytest.approx(1 + mu * along if is_nesterov else along, rel=0.1)
        assert mean["transverse"] == pytest.approx(mu * across if is_nesterov else across, rel=0.1, abs=1e-6)


def test_half_of_the_smoothed_correlation_is_the_newest() -> None:
    _, second, *rest = noted(drawn(9, 0.4), sgd(0.9, is_nesterov=True))
    smoothed = second["rho"]
    assert second["smoothed_rho"] == smoothed
    for row in rest:
        smoothed = (smoothed + row["rho"]) / 2
        assert row["smoothed_rho"] == pytest.approx(smoothed)


@pytest.mark.parametrize("kind", ["adam", "adagrad"])
def test_of_any_optimizer_it_is_what_was_applied(kind: str) -> None:
    gradients = drawn(3, 0.5)
    outer = OuterOptimizer(kind, 0.1, 0.9, is_nesterov=False, device="own")
    worker: Any = Alone()
    point, memory = vector(torch.zeros(N)), dict[str, Any]()
    for gradient in gradients:
        before = point.parts[0].clone()
        outer.step(worker, point, vector(gradient), memory, 0)
        step, d, row = (before - point.parts[0]).double(), gradient.double(), worker.noted[-1]
        along = step @ d / d.square().sum()
        assert row["gain"] == pytest.approx(float(along) / 0.1, rel=1e-5)
        assert row["transverse"] == pytest.approx(float((step - along * d).norm() / d.norm()) / 0.1, rel=1e-5)
    assert row["rho"] == pytest.approx(float(torch.cosine_similarity(gradients[2], gradients[1], dim=0)), abs=1e-3)


def test_where_nothing_was_gone_nothing_is_said() -> None:
    worker: Any = Alone()
    x = torch.ones(4)
    point, memory, outer = vector(x), dict[str, Any](), sgd(0.9, is_nesterov=True)
    for gradient in (x, torch.zeros(4), x):
        outer.step(worker, point, vector(gradient), memory, 0)
    assert [row["rho"] for row in worker.noted] == [None] * 3
    assert [row["gain"] is None for row in worker.noted] == [False, True, False]


@pytest.mark.parametrize("is_nesterov", [False, True])
@pytest.mark.parametrize("rho", [0.3, 0.9])
def test_a_measured_gain_is_held_where_a_momentum_can(rho: float, is_nesterov: bool) -> None:
    outer = OuterOptimizer("sgd", 0.7, 0.9, is_nesterov=is_nesterov, device="own", reach=1.05)
    first, *rest = noted([d * (1 + number % 3) for number, d in enumerate(drawn(40, rho))], outer)
    assert first["gain"] == pytest.approx(1.5 if is_nesterov else 1.0, rel=1e-3)
    momenta = {row["momentum"] for row in rest}
    assert len(momenta) > 10
    assert all(0 < momentum <= 0.9 for momentum in momenta)
    free = [row for row in rest if row["momentum"] < 0.9]
    assert len(free) > 10
    assert all(row["gain"] == pytest.approx(1.5, rel=2e-3) for row in free)
    assert all(row["gain"] < 1.5 for row in rest if row["momentum"] == 0.9)


def test_where_the_way_turns_around_the_momentum_is_what_comes_closest() -> None:
    there = torch.arange(1.0, 9.0)
    outer = OuterOptimizer("sgd", 0.7, 0.9, is_nesterov=True, device="own", reach=1.4)
    *_, last = noted([there] * 9 + [-there], outer)
    others = [_gain_of_the_last([there] * 9, -there, outer, momentum) for momentum in (0.0, 0.1, 0.2, 0.3, 0.5, 0.9)]
    assert all(last["gain"] > gain - 1e-3 for gain in others)
    heavy = OuterOptimizer("sgd", 0.7, 0.9, is_nesterov=False, device="own", reach=1.4)
    *_, last = noted([there] * 9 + [-there], heavy)
    assert last["gain"] == pytest.approx(1.0, abs=1e-3)


def _gain_of_the_last(before: list[Tensor], last: Tensor, outer: OuterOptimizer, momentum: float) -> float:
    """Of one that takes `before` as `outer` does, and the last gradient with this momentum."""
    worker: Any = Alone()
    point, memory = vector(torch.zeros_like(last)), dict[str, Any]()
    for gradient in before:
        outer.step(worker, point, vector(gradient), memory, 0)
    other = OuterOptimizer("sgd", outer.rate, momentum, is_nesterov=outer.is_nesterov, device="own")
    other.step(worker, point, vector(last), memory, 0)
    return float(worker.noted[-1]["gain"])


def test_the_momentum_is_the_same_however_it_is_summed_up() -> None:
    """Workers may add up in another order, on another device, or with other threads."""
    gradients = drawn(30, 0.6, size=5000)
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(4))
    outer = OuterOptimizer("sgd", 0.7, 0.9, is_nesterov=True, device="own", reach=1.4)
    told = [[row["momentum"] for row in noted(some, outer)] for some in (gradients, [d[order] for d in gradients])]
    assert told[0] == told[1]


@pytest.mark.parametrize("strategy", ["diloco", "decoupled-diloco"])
def test_what_no_momentum_can_hold_is_refused(strategy: str) -> None:
    for choice, words in (
        ({"outer_reach": 0.5}, "outer_reach is 0.5; it must be a number from outer_rate, 0.7, on"),
        ({"outer_reach": math.inf}, "outer_reach is inf"),
        ({"outer": "adam"}, "outer is 'adam'"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            strategies.get(strategy)(outer_gain="measured", **choice)


ARMS: list[tuple[str, dict[str, Any]]] = [
    ("diloco", {"sync_every": 4, "fragments": 2}),
    ("decoupled-diloco", {"sync_every": 4, "fragments": 2, "overlap": 1, "wait_for": 2}),
    ("diloco", {"sync_every": 3, "outer": "adam", "outer_rate": 0.01}),
    ("diloco", {"sync_every": 2, "outer_gain": "measured", "outer_reach": 1.5}),
]


def trained(size: int, root: Path, strategy: str, folder: Path, **settings: Any) -> list[Tensor]:
    """The parameters in the end, of a training that goes on from a checkpoint in `root`."""
    fields: Any = {"model": net, "loss": lambda t: loss(t.model, t.rank, t.step), "pause": 0.01, "records": folder}
    return Scene(strategy, size, root=root, loads=True, **fields, **settings).ends()


def outer_rows(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [row for row in rows(records_of(folder, rank)) if row["kind"] == "outer"]


@pytest.mark.parametrize(("strategy", "settings"), ARMS)
def test_every_worker_records_the_same_of_every_fragment(
    strategy: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    trained(3, tmp_path, strategy, tmp_path, steps=24, **settings)
    told = [outer_rows(tmp_path, rank) for rank in range(3)]
    numbers = ("fragment", "norm", "momentum", "rho", "smoothed_rho", "gain", "transverse")
    own = [[tuple(row.get(name) for name in numbers) for row in one] for one in told]
    assert own[0] == own[1] == own[2]
    assert {row["fragment"] for row in told[0]} == set(range(settings.get("fragments", 1)))
    first = [row for row in told[0] if "rho" not in row]
    assert len(first) == settings.get("fragments", 1) < len(told[0])
    assert all(-1 <= row["rho"] <= 1 and {"gain", "transverse"} <= row.keys() for row in told[0] if "rho" in row)


@pytest.mark.parametrize("strategy", ["diloco", "decoupled-diloco"])
def test_a_strategy_holds_the_gain_that_it_is_set(strategy: str, tmp_path: Path) -> None:
    choice = {"outer_gain": "measured", "outer_rate": 0.5, "outer_reach": 0.8}
    trained(2, tmp_path, strategy, tmp_path, steps=16, sync_every=2, **choice)
    told = outer_rows(tmp_path, 1)
    assert len({row["momentum"] for row in told}) > 3
    held = [row for row in told if row["momentum"] < 0.9]
    assert sum(row["gain"] == pytest.approx(1.6, rel=2e-3) for row in held) >= 4
    assert all(row["gain"] < 1.601 for row in told)


@pytest.mark.parametrize(("strategy", "settings"), ARMS)
def test_it_goes_on_across_a_checkpoint(strategy: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """The rows of a training that was cut off and went on are those of one that was not."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    (whole / "c").mkdir(parents=True), (cut / "c").mkdir(parents=True)
    ends = trained(2, whole / "c", strategy, whole, steps=20, saves=[11], **settings)
    trained(2, cut / "c", strategy, cut, steps=11, saves=[11], **settings)
    before = len(outer_rows(cut, 0))
    resumed = trained(2, cut / "c", strategy, cut, steps=20, **settings)
    assert all("rho" in row for row in outer_rows(cut, 0)[before:])
    if strategy == "decoupled-diloco":  # hands in anew what it had handed in, so that rounds are others
        return
    assert all(torch.equal(x, y) for x, y in zip(ends, resumed, strict=True))
    names = ("fragment", "momentum", "rho", "gain", "transverse")
    went_on = [[row.get(name) for name in names] for row in outer_rows(cut, 0)[before:]]
    assert went_on == [[row.get(name) for name in names] for row in outer_rows(whole, 0)[-len(went_on) :]]
