"""The additional seconds of workers that wait for each other."""

from __future__ import annotations

import random
import statistics

import pytest

from quorate.planning.waiting import slowest, spread_of

DRAW = random.Random(3)
SPREAD = sorted(DRAW.lognormvariate(0.0, 0.2) for _ in range(501))
SPREAD = [seconds / statistics.median(SPREAD) for seconds in SPREAD]


def test_steps_over_those_around_them() -> None:
    assert spread_of([[6.0, 2.0, 4.0]]) == [0.5, 1.0, 1.5]
    assert spread_of([[3.0], [1.0], [2.0]]) == [0.5, 1.0, 1.5], "beside each other"
    assert spread_of([]) == spread_of([[], []]) == spread_of([[0.0, 0.0]]) == []


def test_a_machine_that_becomes_slow_is_no_slow_worker() -> None:
    """Three runs that take twice as long from their middle on."""
    runs = [[1.0] * 40 + [2.0] * 40 for _ in range(3)]
    spread = spread_of(runs)
    assert len(spread) == 240 and sum(ratio == 1.0 for ratio in spread) >= 232
    assert slowest(spread, 8) == 1.0


def test_what_varies_by_worker_is_kept() -> None:
    runs = [[DRAW.choice([1.0, 1.2, 1.4]) for _ in range(50)] for _ in range(4)]
    assert slowest(spread_of(runs), 4) == pytest.approx(1.4 / 1.2, rel=0.02)


@pytest.mark.parametrize("workers", [2, 3, 8, 40])
def test_the_slowest_of_many_draws(workers: int) -> None:
    """In half of all steps, which are drawn here."""
    drawn = [max(DRAW.choices(SPREAD, k=workers)) for _ in range(4000)]
    assert slowest(SPREAD, workers) == pytest.approx(statistics.median(drawn), rel=0.02)


def test_more_workers_have_a_slower_one() -> None:
    factors = [slowest(SPREAD, workers) for workers in (1, 2, 3, 8, 100, 10**9)]
    assert factors[0] == 1.0 and factors == sorted(factors) and factors[2] > factors[1] > 1.02
    assert factors[-1] == pytest.approx(SPREAD[-1]), "never slower than what was seen"
    assert slowest([], 8) == slowest([1.0] * 5, 8) == slowest([1.0], 8) == 1.0
