"""Workers that die while checkpoints are made: those that are left complete them, and a new training goes on there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.checkpoint.folder import complete_ones, read_manifest, verify
from quorate.checkpoint.participants import checkpoint_context
from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.faulty import Fault, Faulty
from quorate.wire.virtual.world import VirtualWorld
from tests.unit.rounds.test_deaths import NEVER
from tests.unit.rounds.test_laws import net, sgd, speeds

STEPS = 12


def train(wire: Wire, root: Path, plan: Plan, faulty: Faulty | None) -> torch.Tensor:
    """With a save in every third step, and one when all have come to the end."""
    place = current.enter(wire, thread_only=True)
    try:
        world = quorate.join(records=False)
        checkpoint_context(place).root = root
        model = net()
        optimizer: Any = quorate.distribute(
            sgd(model.parameters()), model, plan.strategy, with_one_worker="algorithm", **plan.settings
        )
        world.barrier()
        began = quorate.load() if faulty is None else None
        for fault in plan.faults:
            if faulty is not None and fault.rank == world.rank:
                fault.at = faulty.calls + plan.deaths[world.rank]
        draw = torch.Generator().manual_seed(world.rank)
        for step in range(3 if began else STEPS):
            optimizer.zero_grad()
            wire.clock.sleep(plan.pauses(world.rank, step))
            model(torch.randn(4, 3, generator=draw)).square().mean().backward()
            optimizer.step()
            if step % 3 == 2 and faulty is not None:
                quorate.save()
        with world.evaluate():
            pass
        if faulty is not None:
            quorate.save()
        optimizer.finish()
        place.leave()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    finally:
        current.forget(thread_only=True)


class Plan:
    """One training, and who dies in it."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.size = draw.choice([2, 3, 5])
        victims = draw.sample(range(self.size), draw.choice([1, 1, self.size - 1]))
        self.deaths = {rank: draw.randint(1, draw.choice([20, 60, 150])) for rank in victims}
        self.faults = [Fault(kind="stop", rank=rank, at=NEVER) for rank in victims]
        self.pauses = speeds(draw, self.size)
        self.strategy = draw.choice(["quorum", "quorum", "all-reduce", "local-sgd"])
        self.settings: dict[str, Any] = {
            "quorum": {"wait_for": draw.choice(["all", "majority", 1])},
            "all-reduce": {"on_death": "continue"},
            "local-sgd": {"sync_every": 2},
        }[self.strategy]


@pytest.mark.seeds(3, 6)
def test_checkpoints_are_completed_by_those_that_are_left(tmp_path: Path, seed: int) -> None:
    plan = Plan(seed)

    def live(wire: Wire) -> torch.Tensor:
        faulty = Faulty(wire, plan.faults)
        return train(faulty, tmp_path, plan, faulty)

    outcomes = VirtualWorld(plan.size, seed=seed, timeout=60.0).outcomes(live)
    dead = {fault.rank for fault in plan.faults if fault.fired}
    found = [one.result for one in outcomes if one.result is not None]
    assert len(found) == plan.size - len(dead), [one.error for one in outcomes]
    kept = complete_ones(tmp_path)
    for folder in kept:
        verify(folder)
    last = kept[0]
    assert set(read_manifest(last)["ranks"]) >= set(range(plan.size)) - dead
    again = VirtualWorld(len(found), seed=seed, timeout=60.0).run(lambda wire: train(wire, tmp_path, plan, None))
    assert all(torch.equal(one, again[0]) for one in again)
