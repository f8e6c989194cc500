"""What gossip writes down: when a worker came, how long it waited, and that nothing but its numbers travels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from quorate.records.records import records_of, rows
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.network import Network
from tests.support.scene import Scene, Trainer, ones

STEPS, NUMBERS = 5, 8
STILL = Network(latency=0.0, bandwidth=1e15)


def steps_of(folder: Path, monkeypatch: pytest.MonkeyPatch, size: int, **settings: Any) -> list[list[dict[str, Any]]]:
    """The steps of every rank; a step computes for 30 ms, and the last rank sleeps 50 ms before each."""
    lived(folder, monkeypatch, size, **settings)
    return [[row for row in rows(records_of(folder, rank)) if row["kind"] == "step"] for rank in range(size)]


def lived(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int, *, evaluates: int | None = None, **settings: Any
) -> list[list[list[float]]]:
    """Of every rank: its replica before the evaluation after so many steps, and the mean that it saw there."""
    monkeypatch.setenv("QUORATE_RUN", str(folder))

    def note(trainer: Trainer) -> None:
        trainer.seen.append(trainer.parameters.tolist())

    def before(trainer: Trainer) -> None:
        if trainer.step == evaluates:
            note(trainer)
            with trainer.world.evaluate():
                note(trainer)

    def pause(rank: int, step: int) -> float:
        return 0.05 if rank == size - 1 else 0.0

    fields: dict[str, Any] = {"model": (3, 2), "rate": 0.1, "heavy": 0.5, "steps": STEPS, **settings}
    world = {"compute": Constant(0.030), "network": STILL}
    scene = Scene(size=size, pause=pause, before=before, loss=lambda t: ones(t) * (t.rank + 1), world=world, **fields)
    return scene.run(lambda trainer: trainer.seen)


@pytest.mark.parametrize("name", ["d-psgd", "sgp", "d2", "relay", "choco-sgd", "dcd-psgd", "ecd-psgd"])
def test_who_waits_came_before_it_waited(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = steps_of(tmp_path, monkeypatch, 2, strategy=name)
    for step in first[1:]:
        assert step["compute"] == pytest.approx(0.030, abs=1e-4)
        assert step["arrive"] - step["begin"] == pytest.approx(0.030, abs=1e-4)
    assert 0.05 * (STEPS - 2) <= sum(step["wait"] for step in first) <= 0.05 * STEPS + 1e-3
    assert sum(step["wait"] for step in last) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "vectors"),
    [
        ({"strategy": "d-psgd", "topology": "ring"}, 2 * (STEPS + 1)),
        ({"strategy": "d-psgd", "topology": "ring", "momentum": "average"}, 4 * (STEPS + 1)),
        ({"strategy": "d-psgd", "topology": "complete", "overlap": False}, 3 * STEPS),
        ({"strategy": "sgp"}, STEPS),
        ({"strategy": "sgp", "momentum": "average"}, 2 * STEPS),
        ({"strategy": "osgp"}, STEPS),
        ({"strategy": "d2", "topology": "ring"}, 2 * STEPS),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_what_travels_is_the_parameters_and_nothing_else(
    settings: dict[str, Any], vectors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps in steps_of(tmp_path, monkeypatch, 4, **settings):
        assert sum(step["bytes_out"] for step in steps) == vectors * NUMBERS * 4


@pytest.mark.parametrize(
    "name", ["d-psgd", "sgp", "osgp", "ad-psgd", "d2", "relay", "choco-sgd", "dcd-psgd", "ecd-psgd"]
)
def test_distances_are_those_from_the_mean_of_all(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that mixes with neighbours knows no mean of all, and measures nothing."""
    steps_of(tmp_path, monkeypatch, 3, strategy=name)
    assert not [row for rank in range(3) for row in rows(records_of(tmp_path, rank)) if row["kind"] == "distance"]


@pytest.mark.parametrize(
    "name", ["d-psgd", "sgp", "osgp", "ad-psgd", "d2", "relay", "choco-sgd", "dcd-psgd", "ecd-psgd"]
)
def test_an_evaluation_tells_how_far_each_replica_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, (own, mean) in enumerate(lived(tmp_path, monkeypatch, 3, evaluates=2, strategy=name)):
        (row,) = (row for row in rows(records_of(tmp_path, rank)) if row["kind"] == "distance")
        assert row["step"] == 2
        assert row["distance"] == pytest.approx(math.dist(own, mean), rel=1e-4)
        assert row["norm"] == pytest.approx(math.hypot(*mean), rel=1e-4)
