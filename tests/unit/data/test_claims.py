"""Batches that a worker had taken when it died are given to others."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.faulty import Fault, Faulty
from quorate.wire.virtual.world import VirtualWorld

EXAMPLES, BATCH = 120, 4


def epoch(size: int, fault: Fault, after: int, seed: int) -> tuple[dict[int, list[int]], list[int], set[int]]:
    """By rank, the examples it has computed, those that a worker had in hand when it died, and who died."""
    computed: dict[int, list[int]] = {rank: [] for rank in range(size)}
    in_hand: dict[int, list[int]] = {}
    draw = random.Random(seed)
    pauses = [draw.choice([0.005, 0.01, 0.03]) for _ in range(size)]

    def live(wire: Wire) -> None:
        faulty = Faulty(wire, [fault])
        place = current.enter(faulty, thread_only=True)
        try:
            world = quorate.join()
            model = torch.nn.Linear(1, 1)
            optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, "eager-solo")
            world.barrier()
            if world.rank == fault.rank:
                fault.at = faulty.calls + after
            data = TensorDataset(torch.arange(EXAMPLES, dtype=torch.float32).unsqueeze(1))
            for (x,) in quorate.shard(data, BATCH):
                in_hand[world.rank] = [int(value) for value in x]
                wire.clock.sleep(pauses[world.rank])
                (model(x).square().mean() * 1e-6).backward()
                optimizer.step()
                optimizer.zero_grad()
                computed[world.rank] += in_hand.pop(world.rank)
            optimizer.finish()
            place.leave()
        finally:
            current.forget(thread_only=True)

    outcomes = VirtualWorld(size, seed=seed, timeout=60.0).outcomes(live)
    dead = {outcome.rank for outcome in outcomes if outcome.is_crashed}
    for outcome in outcomes:
        assert outcome.is_crashed or outcome.error is None, outcome.error
    return computed, [number for rank in dead for number in in_hand.get(rank, [])], dead


@pytest.mark.parametrize("seed", range(8))
def test_every_example_is_computed_and_only_what_was_in_hand_twice(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])
    fault = Fault(kind="stop", rank=draw.randrange(size), at=1 << 40)
    computed, in_hand, dead = epoch(size, fault, draw.randint(5, 40), seed)
    assert dead == {fault.rank}
    every = [number for some in computed.values() for number in some]
    assert set(every) == set(range(EXAMPLES))
    twice = {number for number in every if every.count(number) > 1}
    last = computed[fault.rank][-BATCH:]
    assert twice <= {*in_hand, *last}, "what it had computed before its last batch is not given again"


def test_nothing_is_given_again_where_nobody_dies() -> None:
    computed, in_hand, dead = epoch(3, Fault(kind="stop", rank=0, at=1 << 40), 1 << 39, 0)
    assert not dead
    assert not in_hand
    assert sorted(number for some in computed.values() for number in some) == list(range(EXAMPLES))
