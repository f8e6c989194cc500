"""Codecs, rules, noise and outer steps in ordinary loops: each computes its own formula, whatever the dtype is."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from quorate.aggregation import rules
from quorate.codecs import codecs
from quorate.wire.virtual.network import Network
from tests.support.ordinary_loops import Cell, ended, small_net
from tests.support.scene import Trainer, fit, sums, zeros

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FOR_SMALL: dict[str, dict[str, Any]] = {
    "dgc": {"density": 0.3, "momentum": 0.5},
    "mask": {"density": 0.5},
    "random-k": {"density": 0.5},
    "threshold": {"at": 1.0},
    "top-k": {"density": 0.3},
}
"""Settings of codecs for tensors of a few numbers."""


def of_every_dtype(cell: Cell, *, alike: bool = False) -> list[list[float]]:
    """Trains the same net in each dtype and returns its losses; with `alike` all workers compute the same batches."""

    def loss(trainer: Trainer) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * trainer.step + (0 if alike else trainer.rank))
        x = torch.randn(32, 4, generator=generator)
        return (trainer.model(x.to(trainer.dtype)).float() - x.sum(1, keepdim=True)).square().mean()

    def losses(number: int, dtype: torch.dtype) -> list[float]:
        fields: dict[str, Any] = {"rate": 0.1, "loss": loss, "settings": {"name": f"{number}"}}
        return cell.train(5, model=lambda: small_net().to(dtype), **fields).losses

    return [losses(number, dtype) for number, dtype in enumerate(DTYPES)]


def assert_each_dtype_learns_alike(losses: list[list[float]]) -> None:
    """Fails where a net has learned another amount than that of float32."""
    of_float32 = losses[0]
    for dtype, own in zip(DTYPES, losses, strict=True):
        assert all(map(math.isfinite, own)), (dtype, own)
        assert abs(own[-1] - of_float32[-1]) < 0.2 * of_float32[0], (dtype, own, of_float32)


@pytest.mark.parametrize("name", codecs.names())
def test_a_codec_trains_models_of_every_dtype(name: str) -> None:
    settings = {"compress": name, "dense_below": 0, **FOR_SMALL.get(name, {})}
    for losses in ended(of_every_dtype, "all-reduce", **settings).right():
        assert_each_dtype_learns_alike(losses)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("all-reduce", {"compress": "demo", "reduce": "geometric-median:f=0"}),
        ("all-reduce", {"compress": "qsgd", "reduce": "two-phase"}),
        ("eager-majority", {"compress": "top-k", "density": 0.3}),
        ("eager-majority", {"compress": "random-k", "density": 0.5}),
        ("diloco", {"compress": "dgc:momentum=0.0,density=0.3", "sync_every": 2}),
        ("parameter-server", {"compress": "one-bit"}),
        ("choco-sgd", {"compress": "top-k", "density": 0.3}),
    ],
    ids=str,
)
def test_other_ways_to_exchange_codes_train_models_of_every_dtype(strategy: str, settings: dict[str, Any]) -> None:
    for losses in ended(of_every_dtype, strategy, dense_below=0, **settings).right():
        assert_each_dtype_learns_alike(losses)


@pytest.mark.parametrize("name", rules.names())
def test_a_rule_trains_models_of_every_dtype(name: str) -> None:
    loop = partial(of_every_dtype, alike=name == "majority")
    for losses in ended(loop, "all-reduce", 5, reduce=name).right():
        assert_each_dtype_learns_alike(losses)


def on_clients(cell: Cell, *, with_buffers: bool) -> None:
    """A training on clients; the net has statistics of BatchNorm, or no buffers."""
    norms = [torch.nn.BatchNorm1d(4)] * with_buffers
    model = lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), *norms, torch.nn.Linear(4, 1))  # noqa: E731
    shard, settings = {"partition": "iid", "clients": 4}, {"weigh": "equal", "sampled": 0.9}
    cell.train(model=model, data=sums(48, seed=0), loss=fit, epochs=2, shard=shard, settings=settings)


@pytest.mark.parametrize("strategy", ["fed-avg", "fed-prox", "fed-opt"])
@pytest.mark.parametrize("settings", [{"clip": 1.0, "noise": 1.0}, {"secure": True}], ids=["noise", "secure"])
def test_hidden_parameters_do_not_go_with_buffers_that_are_exchanged(strategy: str, settings: dict[str, Any]) -> None:
    sentence = 'protect the parameters, and not the buffers of the model .* Set buffers="none"'
    ended(partial(on_clients, with_buffers=True), strategy, **settings).refused(sentence)
    ended(partial(on_clients, with_buffers=True), strategy, buffers="none", **settings).right()
    ended(partial(on_clients, with_buffers=False), strategy, **settings).right()
    ended(partial(on_clients, with_buffers=True), strategy).right()


def row_of(trainer: Trainer) -> list[float]:
    return trainer.model.weight.detach()[0].tolist()


def a_step(cell: Cell, gradient: float = 1.0) -> list[float]:
    """One step of SGD with rate 1 on a matrix of zeros, where every worker's gradient is a number; returns a row."""
    return row_of(cell.train(1, model=zeros(4, 4), rate=1.0, loss=lambda t: gradient * t.model.weight.sum()))


WAYS_OF_CODES: list[tuple[str, dict[str, Any]]] = [
    ("all-reduce", {"reduce": "gather"}),
    ("all-reduce", {"reduce": "two-phase"}),
    ("all-reduce", {"reduce": "geometric-median:f=0"}),
    ("all-reduce", {"reduce": "centered-clipping:f=0,tau=10.0"}),
    ("robust", {"reduce": "mean:f=0", "momentum": 0.0}),
    ("eager-majority", {"wait_for": "all"}),
    ("sync-backup", {"backup": 0}),
    ("parameter-server", {}),
]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("strategy", "settings"), WAYS_OF_CODES, ids=str)
def test_an_absolute_threshold_is_a_number_of_the_gradient(strategy: str, settings: dict[str, Any], size: int) -> None:
    choice = {"compress": "threshold", "of": "absolute", "dense_below": 0, "with_one_worker": "algorithm", **settings}
    sent = ended(a_step, strategy, size, at=0.9, error_feedback=False, **choice).right()
    assert sent == [pytest.approx([-1.0] * 4, rel=1e-4)] * size
    kept_back = ended(a_step, strategy, size, at=1.1, error_feedback=False, **choice).right()
    assert kept_back == [[0.0] * 4] * size


@pytest.mark.parametrize(("at", "moved"), [(0.9, -1.0), (1.1, 0.0)])
def test_between_hosts_an_absolute_threshold_is_a_number_of_the_mean_of_a_host(at: float, moved: float) -> None:
    choice = {"compress": "threshold", "of": "absolute", "dense_below": 0, "error_feedback": False, "at": at}
    hosts = Network(hosts=[0, 0, 1, 1])
    for row in ended(a_step, "all-reduce", 4, network=hosts, reduce="hierarchical", **choice).right():
        assert row == [moved] * 4


@pytest.mark.parametrize("compress", ["none", "half"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_radius_is_a_length_of_gradients(compress: str, size: int) -> None:
    """16 numbers of 1 are 4 long: three pulls of 0.5 are 1.5 of it."""
    choice: dict[str, Any] = {"with_one_worker": "algorithm", "reduce": "centered-clipping:f=0,tau=0.5"}
    if compress != "none":
        choice |= {"compress": compress, "dense_below": 0}
    for row in ended(a_step, "all-reduce", size, **choice).right():
        assert row == pytest.approx([-1.5 / 4] * 4, rel=1e-2)


@pytest.mark.parametrize("settings", [{}, {"reduce": "mean:f=0"}, {"compress": "half", "dense_below": 0}], ids=str)
@pytest.mark.parametrize("size", [2, 4])
def test_a_constant_attack_sends_a_constant_gradient(size: int, settings: dict[str, Any]) -> None:
    for row in ended(a_step, "all-reduce", size, attack="constant:scale=-100.0", **settings).right():
        assert row == pytest.approx([-(size - 1 - 100.0) / size] * 4, rel=1e-2)


def a_vote(cell: Cell, signs: tuple[float, ...]) -> list[float]:
    """One step of SGD with rate 1 from zeros, where a worker's gradient is its sign times its rank and 1 more."""
    return a_step(cell, signs[cell.world.rank] * (1 + cell.world.rank))


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("all-reduce", {"reduce": "gather"}),
        ("all-reduce", {"reduce": "two-phase"}),
        ("eager-majority", {"wait_for": "all"}),
        ("sync-backup", {"backup": 0}),
        ("parameter-server", {"mode": "sync"}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("signs", "vote"), [((1.0, 1.0, -1.0), 1.0), ((-1.0, -1.0, 1.0), -1.0), ((-1.0, 1.0), 1.0), ((-1.0,) * 4, -1.0)]
)
def test_signs_without_a_scale_are_votes(
    strategy: str, settings: dict[str, Any], signs: tuple[float, ...], vote: float
) -> None:
    choice = {"compress": "sign", "scale": "none", "dense_below": 0, **settings}
    for row in ended(partial(a_vote, signs=signs), strategy, len(signs), **choice).right():
        assert row == [-vote] * 4


def a_vote_after_another_ended(cell: Cell) -> list[float]:
    """Rank 0 makes a step more than rank 1, alone; returns how far it went in it."""
    steps = 2 - cell.world.rank
    return row_of(cell.train(steps, model=zeros(4, 4), rate=1.0, loss=lambda t: -t.model.weight.sum()))


@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority"])
@pytest.mark.parametrize("reduce", ["gather", "two-phase"])
def test_a_worker_that_has_ended_has_no_vote(strategy: str, reduce: str) -> None:
    choice: dict[str, Any] = {"compress": "sign", "scale": "none", "dense_below": 0}
    if strategy == "all-reduce":
        choice["reduce"] = reduce
    for row in ended(a_vote_after_another_ended, strategy, **choice).right():
        assert row == pytest.approx([2.0] * 4)


def in_weighted_steps(cell: Cell, *, epochs: int = 1) -> list[float]:
    """Steps of SGD with rate 1 from zeros, on gradients of ones, of batches of 4 and 2 examples; returns a row."""
    data: dict[str, Any] = {"data": sums(6 * cell.world.size), "shard": {"share": "static"}, "epochs": epochs}
    return row_of(cell.train(model=zeros(4, 4), rate=1.0, loss=lambda t: t.model.weight.sum(), **data))


ABSOLUTE: dict[str, Any] = {"compress": "threshold", "of": "absolute", "dense_below": 0, "error_feedback": False}
WEIGHTED_WAYS: list[tuple[str, dict[str, Any]]] = [
    ("all-reduce", {"reduce": "gather"}),
    ("all-reduce", {"on_death": "continue"}),
    ("eager-majority", {"wait_for": "all"}),
    ("quorum", {"wait_for": "all"}),
]


@pytest.mark.parametrize(("strategy", "settings"), WEIGHTED_WAYS, ids=str)
@pytest.mark.parametrize("weight", ["equal", "examples"])
def test_an_absolute_threshold_does_not_depend_on_weights(strategy: str, settings: dict[str, Any], weight: str) -> None:
    choice = {**ABSOLUTE, **settings, "weight": weight}
    in_rounds = settings.get("wait_for") == "all" and weight == "examples"  # there a short batch counts as much less
    for row in ended(in_weighted_steps, strategy, 3, at=0.9, **choice).right():
        assert row == pytest.approx([-1.5 if in_rounds else -2.0] * 4, rel=1e-4)
    assert ended(in_weighted_steps, strategy, 3, at=1.1, **choice).right() == [[0.0] * 4] * 3


OUTER: dict[str, Any] = {"sync_every": 2, "outer_rate": 1.0, "outer_momentum": 0.0}


@pytest.mark.parametrize("weight", ["equal", "examples"])
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("decoupled-diloco", {**OUTER, "averaging": "radial", "wait_for": "all", "overlap": 0}),
        ("decoupled-diloco", {**OUTER, "averaging": "mean", "wait_for": "all", "overlap": 0}),
        ("async-local-sgd", {**OUTER, "dynamic": False}),
        ("diloco", OUTER),
    ],
    ids=str,
)
def test_an_absolute_threshold_is_a_number_of_the_way_of_local_steps(
    strategy: str, settings: dict[str, Any], weight: str
) -> None:
    """Two steps of 1 are a way of 2; the steps of another epoch begin where the outer step led."""
    choice = {**ABSOLUTE, **settings, "weight": weight}
    loop = partial(in_weighted_steps, epochs=2)
    for row in ended(loop, strategy, 3, at=1.9, **choice).right():
        assert row == pytest.approx([-4.0] * 4, rel=1e-4)
    for row in ended(loop, strategy, 3, at=2.1, **choice).right():
        assert row == pytest.approx([0.0] * 4, abs=1e-6)


@pytest.mark.parametrize("reduce", ["two-phase", "hierarchical"])
def test_an_absolute_threshold_of_sums_is_refused_with_weights(reduce: str) -> None:
    choice = {**ABSOLUTE, "reduce": reduce, "weight": "examples"}
    ended(in_weighted_steps, "all-reduce", 4, network=Network(hosts=[0, 0, 1, 1]), at=0.9, **choice).refused(
        f'cannot be combined with reduce="{reduce}" beside compress="threshold"'
    )


@pytest.mark.parametrize("rule", rules.names())
def test_rules_which_compare_gradients_are_refused_with_weights(rule: str) -> None:
    endings = ended(in_weighted_steps, "all-reduce", 5, weight="examples", reduce=rule)
    endings.refused(f'weight="examples" weighs means, and reduce="{rule}" forms none')


@pytest.mark.parametrize("name", codecs.names())
def test_codes_are_of_gradients_whatever_these_weigh(name: str) -> None:
    """All batches weigh 4: what is learned is what it is without weights."""
    settings = {"compress": name, "dense_below": 0, **FOR_SMALL.get(name, {})}
    rows = [ended(in_steps_of_four, "all-reduce", 3, weight=w, **settings).right() for w in ("equal", "examples")]
    for equal, weighted in zip(*rows, strict=True):
        assert weighted == pytest.approx(equal, rel=0.02, abs=0.02)


def in_steps_of_four(cell: Cell) -> list[float]:
    """Three steps on batches of 4 examples of this worker's own; returns the parameters."""
    data = sums(12 * cell.world.size, seed=0)
    return cell.train(rate=0.1, data=data, loss=fit, shard={"share": "static"}).parameters.tolist()


@pytest.mark.parametrize("weight", ["equal", "examples"])
def test_a_constant_attack_sends_a_constant_gradient_whatever_it_weighs(weight: str) -> None:
    """The last of three workers sends -100 in the place of 1, in both steps."""
    loop: dict[str, Any] = {"attack": "constant:scale=-100.0", "weight": weight}
    for row in ended(in_weighted_steps, "all-reduce", 3, **loop).right():
        assert row == pytest.approx([2 * -(2 - 100.0) / 3] * 4, rel=1e-4)


@pytest.mark.parametrize("weight", ["equal", "examples"])
def test_dgc_clips_shares_of_the_mean_whatever_they_weigh(weight: str) -> None:
    """16 numbers of 1 are 4 long, and a third of them in each of three shares."""
    choice = {"compress": "dgc", "density": 1.0, "momentum": 0.0, "clip_norm": 2 / 3, "dense_below": 0}
    for row in ended(in_weighted_steps, "all-reduce", 3, weight=weight, **choice).right():
        assert row == pytest.approx([-1.0] * 4, rel=1e-4)
