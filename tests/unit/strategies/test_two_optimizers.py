"""Two optimizers of one worker, each with means or neighbours of its own: neither keeps the other from them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.launch.worker.world import World
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.faulty import Fault, Faulty
from tests.support.joined import joined
from tests.support.local_trainings import loss, net
from tests.support.scene import flat

STEPS = 12
GOSSIP: list[tuple[str, dict[str, Any]]] = [
    ("d-psgd", {}),
    ("ad-psgd", {}),
    ("osgp", {}),
    ("choco-sgd", {"compress": "sign", "dense_below": 1}),
    ("all-reduce", {}),
]
Both = tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]
WITH_OVERLAP: dict[str, Any] = {"sync_every": 6, "fragments": 2, "overlap": 2}
PAIRS: list[Both] = [
    (("diloco", WITH_OVERLAP), ("diloco", WITH_OVERLAP)),
    (("diloco", WITH_OVERLAP), ("local-sgd", {"sync_every": 2})),
    (("all-reduce", {"on_death": "continue"}), ("diloco", WITH_OVERLAP)),
    (("easgd", {"sync_every": 2}), ("local-sgd", {"sync_every": 3, "on_death": "stop"})),
    (("easgd", {"sync_every": 2}), ("eamsgd", {"sync_every": 3, "overlap": True})),
    (("local-sgd", {"sync_every": 4, "on_death": "stop"}), ("eager-averaging", {"sync_every": 3, "on_death": "stop"})),
]


def train(world: World, both: Both, seed: int) -> list[torch.Tensor]:
    """Unequally many steps of unequal lengths, with an evaluation; what each model was there and is at the end."""
    draw, seen = random.Random(seed + world.rank), []
    models = [net(), net()]
    made: list[Any] = [
        quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model, strategy, name=f"of {i}", **settings)
        for i, (model, (strategy, settings)) in enumerate(zip(models, both, strict=True))
    ]
    world.barrier()
    for step in range(STEPS + world.rank % 2):
        if step == STEPS // 2:
            with world.evaluate():
                seen += [flat(model) for model in models]
        for model, optimizer in zip(models, made, strict=True):
            world.wire.clock.sleep(draw.uniform(0.0, 0.01))
            loss(model, world.rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    for optimizer in made:
        optimizer.finish()
    return seen + [flat(model) for model in models]


def run(size: int, both: Both, seed: int, deaths: dict[int, int] | None = None) -> list[list[torch.Tensor]]:
    faults = [Fault(kind="stop", rank=rank, at=at) for rank, at in (deaths or {}).items()]

    live = joined(lambda world: train(world, both, seed))
    world = VirtualWorld(size, seed=seed, timeout=20.0)
    outcomes = world.outcomes(lambda wire: live(Faulty(wire, faults) if faults else wire))
    dead = {fault.rank for fault in faults if fault.fired}
    for one in outcomes:
        if one.error is not None and one.rank not in dead:
            raise one.error
    return [one.result for one in outcomes if one.result is not None]


def test_means_by_time_are_refused_where_there_are_two() -> None:
    both: Both = ("local-sgd", {"sync_every": 2}), ("local-sgd", {"sync_every": "40ms"})
    with pytest.raises(ConfigurationError, match="as where sync_every is a time.*and 2 optimizers are distributed"):
        run(2, both, 0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("both", PAIRS, ids=lambda both: "-".join(name for name, _ in both))
def test_two_optimizers_end_equal(both: Both, seed: int) -> None:
    told = run(3, both, seed)
    assert len(told) == 3
    for one in told:
        assert all(torch.equal(x, y) for x, y in zip(one, told[0], strict=True))
    assert all(x.isfinite().all() for x in told[0])


TWICE: dict[str, tuple[float, dict[str, Any]]] = {
    "power-sgd": (1e5, {"compress": "power-sgd", "start": 0, "rank": 1, "min_rate": 1.0}),
    "arc-top-k": (1e5, {"compress": "arc-top-k", "start": 1, "rank": 1, "density": 0.1}),
    "two-phase": (1e5, {"compress": "sign", "reduce": "two-phase"}),
    "auto": (1e6, {"compress": "auto", "candidates": ("half", "power-sgd:rank=1,start=0")}),
}
"""Sums that exchange twice or more: the bytes a second of a link, and the settings."""
ARRIVALS = [(0.003, (0.0, 0.006, 0.024)), (0.009, (0.0, 0.045, 0.006))]
"""The latency of a link, and when each of the workers ends."""


@pytest.mark.parametrize(("latency", "ends"), ARRIVALS)
@pytest.mark.parametrize("name", TWICE)
def test_sums_that_exchange_twice_end_in_whatever_order_they_arrive(
    name: str, latency: float, ends: tuple[float, ...]
) -> None:
    """At its end a worker takes part in the sums of both optimizers, and sees either of them first.

    The others may see the other one first, and so none may wait for the second exchange of one of them alone.
    """
    bandwidth, settings = TWICE[name]

    def live(world: World) -> list[torch.Tensor]:
        models = [nn.Linear(40, 40, bias=False), nn.Linear(4, 8, bias=False)]
        settings_of: dict[str, Any] = {"dense_below": 1, **settings}
        made: list[Any] = [
            quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, "all-reduce", **settings_of)
            for model in models
        ]
        for _ in range(3):
            for model, optimizer in zip(models, made, strict=True):
                model(torch.ones(1, model.in_features)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        world.wire.clock.sleep(ends[world.rank])
        for optimizer in made:
            optimizer.finish()
        return [flat(model) for model in models]

    results = VirtualWorld(3, network=Network(latency, bandwidth), timeout=20.0).run(joined(live))
    assert all(torch.equal(x, y) for result in results for x, y in zip(result, results[0], strict=True))


@pytest.mark.parametrize("second", GOSSIP, ids=lambda one: one[0])
@pytest.mark.parametrize("first", GOSSIP[:4], ids=lambda one: one[0])
def test_neighbours_meet_again_behind_an_evaluation(
    first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]]
) -> None:
    """Which each of the two optimizers pauses for by itself."""
    told = run(3, (first, second), 0)
    for one in told:
        assert all(torch.equal(x, y) for x, y in zip(one, told[0], strict=True))


@pytest.mark.seeds(3, 5)
def test_two_optimizers_outlive_a_worker(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([3, 4])
    told = run(size, PAIRS[seed % len(PAIRS[:3])], seed, {draw.randrange(size): draw.randint(60, 400)})
    assert len(told) >= size - 1
    for one in told:
        assert torch.equal(one[-1], told[0][-1])
        assert torch.equal(one[-2], told[0][-2])
