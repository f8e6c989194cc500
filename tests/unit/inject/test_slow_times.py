"""Slow times of one worker, by the schedule that the launcher follows."""

from __future__ import annotations

import pytest

from quorate.inject.failures import SlowTimes, failures_from

FAILURES = failures_from("mtbf=20s,slow=0.5:x3:4s,stop=0.2:1s")
SEED, WORKERS, BEGAN = 2, 4, 1000.0


def expected(rank: int, time: float) -> bool:
    """Whether this moment is in a slow time of the schedule."""
    for failure in FAILURES.schedule(WORKERS, SEED):
        if failure.time > time:
            return False
        if failure.kind == "slow" and rank in failure.ranks and time < failure.time + failure.seconds:
            return True
    raise AssertionError


@pytest.mark.parametrize("rank", range(WORKERS))
def test_they_are_those_of_the_schedule(rank: int) -> None:
    slow = SlowTimes(FAILURES, WORKERS, SEED, rank, lambda: BEGAN)
    assert slow.factor(BEGAN) == 1.0
    factors = [slow.factor(BEGAN + step / 4) for step in range(1, 800)]
    assert factors == [3.0 if expected(rank, step / 4) else 1.0 for step in range(1, 800)]
    assert {1.0, 3.0} == set(factors)


def test_there_are_none_before_the_schedule_begins() -> None:
    times: list[float | None] = [None, None, BEGAN]
    slow = SlowTimes(FAILURES, WORKERS, SEED, 0, lambda: times.pop(0))
    at = next(
        failure.time for failure in FAILURES.schedule(WORKERS, SEED) if failure.kind == "slow" and 0 in failure.ranks
    )
    assert [slow.factor(BEGAN + at + 0.01) for _ in range(3)] == [1.0, 1.0, 1.0], "it came after that"
    assert not times


def test_what_struck_before_a_worker_came_is_passed_over() -> None:
    slow_failure = next(
        slow_failure
        for slow_failure in FAILURES.schedule(WORKERS, SEED)
        if slow_failure.kind == "slow" and slow_failure.seconds > 1
    )
    late = SlowTimes(FAILURES, WORKERS, SEED, slow_failure.ranks[0], lambda: BEGAN)
    there = SlowTimes(FAILURES, WORKERS, SEED, slow_failure.ranks[0], lambda: BEGAN)
    there.factor(BEGAN)
    assert late.factor(BEGAN + slow_failure.time + 0.5) == 1.0
    assert there.factor(BEGAN + slow_failure.time + 0.5) == 3.0
