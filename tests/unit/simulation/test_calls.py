"""Who may start a round among very many: the same answers as of the rule that real rounds go by."""

from __future__ import annotations

import random
from typing import Any

import pytest

from quorate.rounds.calls import Calls
from quorate.rounds.terms import Agreed
from quorate.simulation.calls import CountedCalls


@pytest.mark.parametrize("seed", range(30))
def test_counted_calls_answer_as_calls_do(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([1, 2, 3, 5, 8])
    wait_for: Any = draw.choice([1, size, "majority", "all", "designated", 0.5])
    agreed = Agreed(size=size, wait_for=wait_for, max_staleness=draw.choice([0, 1, 2, 16]), seed=seed)
    plain, counted = Calls(agreed), CountedCalls(agreed)
    started = 0
    for _ in range(300):
        rank, kind = draw.randrange(size), draw.random()
        computing = draw.choice([None, max(0, plain.started - draw.randrange(4))])
        for calls in (plain, counted):
            if kind < 0.6:
                calls.called(rank, plain.started - (kind < 0.1), computing)
            elif kind < 0.8:
                calls.rode(rank, plain.started)
            else:
                calls.completed(plain.started)
        assert counted.may_start() == plain.may_start()
        if plain.may_start():
            started += 1
            assert plain.begin() == counted.begin()
            if draw.random() < 0.7:
                plain.completed(plain.started)
                counted.completed(counted.started)
    assert started or agreed.max_staleness == 0


def test_who_is_drawn_is_who_may_start() -> None:
    calls = CountedCalls(Agreed(size=4, wait_for="designated", seed=3))
    for rank in {0, 1, 2, 3} - {calls.drawn}:
        calls.called(rank, 0)
        assert not calls.may_start() or len(calls.callers) == 4
    calls.called(calls.drawn, 0)
    assert calls.may_start()
