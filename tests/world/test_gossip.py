"""Gossip among real processes: nothing is lost, replicas end equal, and who computes answers meanwhile."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from quorate.launch.worker.world import World
from tests.support.processes import run_real_world
from tests.support.scene import Scene, Trainer, squares

RATE = 0.05


@dataclass
class Told:
    begin: list[float]
    end: list[float]
    gradients: list[float]
    mean: list[float]
    replica: list[float]
    """What this worker gives to the mean: its replica, and what it has received but not taken in."""
    mass: float


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([x.detach().double().reshape(-1) for x in tensors])


def task(
    settings: dict[str, Any], steps: list[int], slow: float, world: World, heavy: float = 0.0, meanwhile: bool = False
) -> Told:
    """Train with plain SGD, on a model that is large enough for shared memory; the last rank is slow.

    `meanwhile`: it computes its last gradient until the others have made all of their steps.
    """
    torch.set_num_threads(1)
    *others, last = range(world.size)
    seen: dict[str, Any] = {"moves": 0.0, "gradients": 0.0}

    def begin(trainer: Trainer) -> None:
        seen["begin"] = flat(trainer.model.parameters())

    def before(trainer: Trainer) -> None:
        if trainer.step == 4:
            with world.evaluate():
                seen["mean"] = flat(trainer.model.parameters())
            with world.evaluate(at="replica"):
                numbers, seen["mass"] = trainer.worker.strategy.consensus(trainer.worker)
                seen["replica"] = flat(numbers.segments())
        if world.rank == last:
            time.sleep(slow)
            if meanwhile and trainer.step == steps[last] - 1:
                world.wire.board.wait([f"all steps of {rank}" for rank in others], timeout=240.0)

    def between(trainer: Trainer) -> None:
        seen["moves"] = heavy * seen["moves"] + flat([p.grad for p in trainer.model.parameters()])
        seen["gradients"] = seen["gradients"] + seen["moves"]

    hooks: Any = {"begin": begin, "before": before, "between": between}
    hooks["last"] = lambda trainer: world.wire.board.set(f"all steps of {world.rank}", b"")
    scene = Scene(model=(60, 300, 5), seed=3, rate=RATE, heavy=heavy, loss=squares, steps=steps, **hooks, **settings)
    end = flat(scene.play(world).model.parameters())
    told = (seen["begin"], end, seen["gradients"], seen["mean"], seen["replica"])
    return Told(*(x.tolist() for x in told), seen["mass"])


def assert_nothing_is_lost(found: list[Told]) -> None:
    moved = sum(torch.tensor(told.gradients) for told in found) * (RATE / len(found))
    mean = sum(told.mass * torch.tensor(told.replica) for told in found) / len(found)
    for told in found:
        assert told.end == found[0].end
        assert torch.allclose(torch.tensor(told.end), torch.tensor(told.begin) - moved, atol=1e-5)
        assert told.mean == found[0].mean
        assert torch.allclose(torch.tensor(told.mean), mean, atol=1e-5)
    assert found[0].replica != found[1].replica


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "d-psgd"},
        {"strategy": "sgp", "patience": 0.05},
        {"strategy": "osgp", "bound": 2},
        {"strategy": "ad-psgd", "topology": "ring", "overlap": True},
        {"strategy": "d2"},
        {"strategy": "noloco", "sync_every": 3, "outer_rate": 1.0, "outer_momentum": 0.0},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_nothing_is_lost_and_replicas_end_equal(settings: dict[str, Any]) -> None:
    steps = [12, 12, 12] if settings["strategy"] == "d2" else [15, 11, 12]
    assert_nothing_is_lost(run_real_world(3, functools.partial(task, settings, steps, 0.01)))


@pytest.mark.parametrize("name", ["sgp"])
def test_momenta_travel_with_the_parameters(name: str) -> None:
    """On regular graphs mixing keeps the sums of both: the mean moves by the momentum of the mean gradient."""
    settings = {"strategy": name, "momentum": "average"}
    assert_nothing_is_lost(run_real_world(3, functools.partial(task, settings, [12, 12, 12], 0.01, heavy=0.5)))


def test_relay_trains_and_replicas_end_equal() -> None:
    found = run_real_world(3, functools.partial(task, {"strategy": "relay"}, [12, 12, 12], 0.01))
    assert all(told.end == found[0].end for told in found)
    assert found[0].end != found[0].begin


def test_under_ad_psgd_a_worker_that_computes_for_long_answers_meanwhile() -> None:
    settings = {"strategy": "ad-psgd", "topology": "star"}  # all ask rank 0, and rank 2, which sleeps, is asked by it
    assert_nothing_is_lost(run_real_world(3, functools.partial(task, settings, [14, 14, 6], 0.01, meanwhile=True)))
