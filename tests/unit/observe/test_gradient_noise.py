"""How noisy gradients are, as trainings tell their records: against a problem whose noise is known."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.gradient_noise import scale_of
from quorate.observe.gradient_noise import EVERY, SPAN
from quorate.records.records import records_of, rows
from quorate.wire.virtual.compute import Constant
from tests.support.scene import Scene, Trainer, zeros

SIZE = 3
SIGNAL, NOISE = 4 * 0.5**2 + 0.25**2, 4 * 0.5**2 + 1.0**2
"""Signal and noise of the gradients of `training`, of one worker; a scale of 1.88."""


@pytest.fixture(autouse=True)
def measures_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rounds."""
    monkeypatch.setattr("quorate.observe.gradient_noise.ROUNDS", 2 * SPAN)


def noise_rows(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [row for row in rows(records_of(folder, rank)) if row["kind"] == "noise"]


def training(steps: int, strategy: str = "all-reduce", *, is_late: bool = False, **settings: Any) -> Scene:
    """Two parameters (one part each) whose gradients are a constant and normal noise, at any place."""

    def begin(trainer: Trainer) -> None:
        trainer.draws = torch.Generator().manual_seed(trainer.rank)

    def loss(trainer: Trainer) -> torch.Tensor:
        weight = 0.5 + 0.5 * torch.randn(1, 4, generator=trainer.draws)
        bias = 0.25 + torch.randn(1, generator=trainer.draws)
        return (trainer.model.weight * weight).sum() + (trainer.model.bias * bias).sum()

    pause = (lambda rank, _: 0.009 * (rank == 0)) if is_late else 0.0
    return Scene(strategy, SIZE, rate=1e-3, steps=steps, loss=loss, begin=begin, pause=pause, **settings)


def run(scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setenv("QUORATE_RUN", str(folder))
    scene.but(world={"compute": Constant(0.01)}).run()
    assert not any(noise_rows(folder, rank) for rank in range(1, scene.size))
    return noise_rows(folder)


def check(rows: list[dict[str, Any]], *, low: int, high: int) -> None:
    """Signal and noise are those of the problem, within four standard errors; `gradients` are between."""
    assert all(low <= row["gradients"] <= high for row in rows)
    signal = [(n * row["mean"] - row["own"]) / (n - 1) for row in rows for n in [row["gradients"]]]
    noise = [(row["own"] - row["mean"]) * n / (n - 1) for row in rows for n in [row["gradients"]]]
    for measured, true in ((signal, SIGNAL), (noise, NOISE)):
        error = statistics.stdev(measured) / len(measured) ** 0.5
        assert abs(statistics.fmean(measured) - true) < 4 * error
        assert error < 0.5 * true


@pytest.mark.parametrize("settings", [{}, {"on_death": "continue"}, {"reduce": "ring"}])
def test_all_reduce_measures_every_so_many_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    count, every = 30, 4
    monkeypatch.setattr("quorate.observe.gradient_noise.EVERY", every)
    rows = run(training(count * every, **settings), tmp_path, monkeypatch)
    assert [row["step"] for row in rows] == [every * (number + 1) for number in range(count)]
    check(rows, low=SIZE, high=SIZE)
    scale = scale_of(rows[-1]["signal"], rows[-1]["noise"])
    assert scale is not None and scale == pytest.approx(NOISE / SIGNAL, rel=0.8)


def test_late_gradients_of_rounds_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run(training(100, "quorum", wait_for=2, is_late=True), tmp_path, monkeypatch)
    assert 30 < len(rows) < 70
    assert len({row["gradients"] for row in rows}) > 1
    check(rows, low=2, high=2 * SIZE)


def test_what_momentum_takes_out_of_gradients_is_allowed_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run(training(100, "quorum", wait_for=2, heavy=0.8), tmp_path, monkeypatch)
    noise = statistics.fmean((row["own"] - row["mean"]) * row["gradients"] / (row["gradients"] - 1) for row in rows)
    signal = statistics.fmean((row["gradients"] * row["mean"] - row["own"]) / (row["gradients"] - 1) for row in rows)
    assert noise / signal == pytest.approx(NOISE / SIGNAL, rel=0.5)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("all-reduce", {"reduce": "adasum"}),
        ("all-reduce", {"compress": "half"}),
        ("quorum", {"late_weight": "falling"}),
        ("local-sgd", {}),
        ("d-psgd", {}),
        ("parameter-server", {}),
    ],
)
def test_not_where_no_mean_of_gradients_is_formed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, settings: dict[str, Any]
) -> None:
    size = 4 if settings.get("reduce") == "adasum" else SIZE
    assert not run(training(EVERY + 1, strategy, **settings).but(size=size), tmp_path, monkeypatch)


def test_unequal_weights_are_weighed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 has batches of 6, the others of 3: with their weights the three are as one batch of 12."""

    def loss(trainer: Trainer) -> torch.Tensor:
        data = torch.utils.data.TensorDataset(torch.arange(36.0, dtype=torch.float64))
        (x,) = next(iter(quorate.loader(data, 3 if trainer.rank else 6, shuffle=False)))
        batches[trainer.rank] = len(x), x.mean().item()
        return (trainer.model.weight * x.mean()).sum()

    batches: dict[int, tuple[int, float]] = {}
    scene = Scene(size=SIZE, model=lambda: zeros()().double(), rate=0.0, steps=EVERY, loss=loss, weight="examples")
    (row,) = run(scene, tmp_path, monkeypatch)
    whole = sum(count for count, _ in batches.values())
    assert row["own"] == pytest.approx(sum(count * x**2 for count, x in batches.values()) / whole)
    assert row["mean"] == pytest.approx((sum(count * x for count, x in batches.values()) / whole) ** 2)


def test_a_gradient_that_travels_in_parts_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parameter is a part of its own, and leaves while the backward pass still runs."""

    def loss(trainer: Trainer) -> torch.Tensor:
        first, second = (layer.weight.sum() for layer in trainer.model)
        trainer.seen.append(0)
        if len(trainer.seen) % 2:
            return (trainer.rank + 1.0) * first
        return first + (1.0 - 2 * trainer.rank) * second

    def last(trainer: Trainer) -> None:
        parts.append(len(trainer.worker.replica.layout.parts))

    model = lambda: torch.nn.Sequential(*(torch.nn.Linear(600, 600, bias=False) for _ in range(2)))  # noqa: E731

    parts: list[int] = []
    scene = Scene(size=2, model=model, rate=0.0, steps=EVERY, passes=2, loss=loss, last=last)
    (row,) = run(scene, tmp_path, monkeypatch)
    assert parts[0] > 1
    numel = 600 * 600
    own = [numel * (2.0**2 + 1.0), numel * (3.0**2 + 1.0)]
    assert row["own"] == pytest.approx(sum(own) / 2, rel=1e-4)
    assert row["mean"] == pytest.approx(numel * 2.5**2, rel=1e-4)
