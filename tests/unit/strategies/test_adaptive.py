"""What `adaptive` chooses, and that all replicas go by it, among virtual workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.strategies.adaptive import Adaptive
from tests.support.scene import Scene, Trainer

SIZE = 4


def trained(pause: Callable[[int, int], float], **chosen: Any) -> list[Trainer]:
    """The workers at the end of a linear regression."""
    scene: dict[str, Any] = {"steps": 60, "rate": 0.02, "world": {"timeout": 600.0}, **chosen}
    return Scene("adaptive", SIZE, model=(6, 1), pause=pause, **scene).run()


def chosen(ends: list[Trainer]) -> list[int]:
    """Quorums, one after another; the same on all workers, whose replicas are equal."""
    first = ends[0].rounds
    for end in ends:
        assert torch.equal(end.parameters, ends[0].parameters)
        assert [(one.number, one.quorum, one.settings, one.why) for one in end.rounds] == [
            (one.number, one.quorum, one.settings, one.why) for one in first
        ]
    assert all(one.why for before, one in pairwise(first) if one.settings != before.settings)
    quorums = [one.quorum for one in first]
    return [one for place, one in enumerate(quorums) if place == 0 or quorums[place - 1] != one]


def test_where_all_are_equally_fast_it_is_synchronous() -> None:
    assert chosen(trained(lambda rank, step: 0.1)) == [3, 4]


def test_one_that_is_always_slow_is_not_waited_for() -> None:
    assert chosen(trained(lambda rank, step: 0.3 if rank == 2 else 0.1))[-1] < SIZE


def test_where_all_vary_much_few_are_waited_for() -> None:
    draw = random.Random(3)
    pauses = [[draw.uniform(0.0, 0.5) for _ in range(60)] for _ in range(SIZE)]
    assert chosen(trained(lambda rank, step: pauses[rank][step]))[-1] < 3


def test_when_imbalance_is_over_all_are_waited_for_again() -> None:
    draw = random.Random(3)
    pauses = [[draw.uniform(0.0, 0.5) if step < 60 else 0.25 for step in range(120)] for _ in range(SIZE)]
    found = chosen(trained(lambda rank, step: pauses[rank][step], steps=120))
    assert min(found) < 3
    assert found[-1] == SIZE


def test_it_steps_back_when_training_gets_worse() -> None:
    draw = random.Random(5)
    pauses = [[draw.uniform(0.0, 0.5) for _ in range(60)] for _ in range(SIZE)]

    def quorums(scale: Callable[[int], float]) -> list[int]:
        def loss(trainer: Trainer) -> torch.Tensor:
            x = trainer.draw()
            return (trainer.model(x) - scale(trainer.step) * x.sum(1, keepdim=True)).square().mean()

        return chosen(trained(lambda rank, step: pauses[rank][step], rate=1e-4, window=8, loss=loss))

    assert max(quorums(lambda step: 1.0)[1:]) < 2
    assert max(quorums(lambda step: 10.0 if step > 30 else 1.0)[1:]) >= 2


@pytest.mark.parametrize("settings", [{"window": 0}, {"lateness": -1.0}, {"margin": -0.1}])
def test_what_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(settings))}="):
        Adaptive(**settings)
