"""A quorum that waits for all is all-reduce, bit for bit, among any number of workers: both add in order of rank, and
between hosts in order of hosts."""

from __future__ import annotations

import functools
import hashlib
import random
from typing import Any

import pytest
import torch

from quorate.launch.worker.world import World
from quorate.wire.real.shared import is_possible
from tests.support.hosts import are_possible, hosts
from tests.support.processes import run_real_world
from tests.support.scene import Scene, Trainer

OPTIMIZERS: dict[str, functools.partial[torch.optim.Optimizer]] = {
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": functools.partial(torch.optim.Adam, lr=3e-3),
}
STRATEGIES: dict[str, dict[str, Any]] = {"all-reduce": {}, "quorum": {"wait_for": "all", "late": "carry", "grace": 5.0}}
STEPS = 8


def trained(strategy: str, optimizer: str, world: World) -> bytes:
    """A digest of the parameters' bits after some steps, in which workers are late, each in its own steps."""
    late, settings = random.Random(world.rank), {"name": f"{strategy} {optimizer}", **STRATEGIES[strategy]}

    def loss(trainer: Trainer) -> torch.Tensor:
        return (trainer.model(trainer.draw(8)) * trainer.draw(8)[:, :30].exp()).square().mean()

    fields: dict[str, Any] = {"model": (40, 600, 30), "make": OPTIMIZERS[optimizer], "steps": STEPS, "loss": loss}
    scene = Scene(strategy, pause=lambda *_: late.choice((0.0, 0.0, 0.015)), settings=settings, **fields)
    return hashlib.sha256(scene.play(world).parameters.numpy().tobytes()).digest()


def all_ways(world: World) -> dict[str, list[bytes]]:
    torch.set_num_threads(1)
    return {name: [trained(strategy, name, world) for strategy in STRATEGIES] for name in OPTIMIZERS}


@pytest.mark.skipif(not is_possible(), reason="the backends add in an order of their own")
@pytest.mark.parametrize("size", [3, 4])
def test_a_quorum_of_all_is_all_reduce(size: int) -> None:
    are_equal(run_real_world(size, all_ways))


@pytest.mark.on_hosts
@pytest.mark.skipif(not (are_possible() and is_possible()), reason="needs root on Linux, to make network namespaces")
@pytest.mark.parametrize("layout", [(2, 2), (1, 2)])
def test_between_hosts_too(layout: tuple[int, ...]) -> None:
    with hosts(len(layout)) as found:
        on = [host for host, count in zip(found, layout, strict=True) for _ in range(count)]
        are_equal(run_real_world(len(on), all_ways, on=on))


def are_equal(found: list[dict[str, list[bytes]]]) -> None:
    """All replicas of an optimizer."""
    for name in OPTIMIZERS:
        bits = {one for of_rank in found for one in of_rank[name]}
        assert len(bits) == 1, f"{name}: {len(bits)} different replicas among {len(found)} workers and two strategies"
