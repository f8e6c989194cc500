"""Batches that a worker had taken when it died are given to others."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from tests.support.scene import Scene, Trainer, parameters

EXAMPLES, BATCH = 120, 4


def epoch(size: int, deaths: dict[int, int], seed: int) -> tuple[dict[int, list[int]], list[int], set[int]]:
    """By rank, the examples it has computed, those that a worker had in hand when it died, and who died."""
    computed: dict[int, list[int]] = {rank: [] for rank in range(size)}
    in_hand: dict[int, list[int]] = {}
    draw = random.Random(seed)
    pauses = [draw.choice([0.005, 0.01, 0.03]) for _ in range(size)]

    def before(trainer: Trainer) -> None:
        in_hand[trainer.rank] = [int(value) for value in trainer.batch[0]]
        trainer.clock.sleep(pauses[trainer.rank])

    def after(trainer: Trainer) -> None:
        computed[trainer.rank] += in_hand.pop(trainer.rank)

    data = TensorDataset(torch.arange(EXAMPLES, dtype=torch.float32).unsqueeze(1))
    loss = lambda trainer: trainer.model(trainer.batch[0]).square().mean() * 1e-6  # noqa: E731
    fields: Any = {"model": (1, 1), "data": data, "loss": loss, "before": before, "after": after}
    scene = Scene("eager-solo", size, deaths=deaths, shard={"batch_size": BATCH}, world={"seed": seed}, **fields)
    dead = set(range(size)) - scene.survivors(parameters).keys()
    return computed, [number for rank in dead for number in in_hand.get(rank, [])], dead


@pytest.mark.parametrize("seed", range(8))
def test_every_example_is_computed_and_only_what_was_in_hand_twice(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])
    victim = draw.randrange(size)
    computed, in_hand, dead = epoch(size, {victim: draw.randint(5, 40)}, seed)
    assert dead == {victim}
    every = [number for some in computed.values() for number in some]
    assert set(every) == set(range(EXAMPLES))
    twice = {number for number in every if every.count(number) > 1}
    last = computed[victim][-BATCH:]
    assert twice <= {*in_hand, *last}, "what it had computed before its last batch is not given again"


def test_nothing_is_given_again_where_nobody_dies() -> None:
    computed, in_hand, dead = epoch(3, {}, 0)
    assert not dead
    assert not in_hand
    assert sorted(number for some in computed.values() for number in some) == list(range(EXAMPLES))
