"""The schedule that is drawn at once is the one that is drawn failure by failure."""

from __future__ import annotations

from itertools import takewhile

import pytest

from quorate.inject.failures import failures_from
from quorate.simulation.failing.schedule import Learners, failures_until


@pytest.mark.parametrize("seed", [7, 2**40])
def test_it_is_the_same_schedule_to_the_last_bit(seed: int) -> None:
    failures = failures_from("mtbf=30s,repair=5s,restart=2s,stop=0.2:3s,slow=0.1:x4:5s,burst=0.1:8")
    at_once = failures_until(failures, 1000, seed, 850.0)
    assert at_once == list(takewhile(lambda failure: failure.time < 850.0, failures.schedule(1000, seed)))
    assert len(at_once) > 2**14  # more than are drawn at once
    assert {failure.kind for failure in at_once} == {"death", "stop", "slow"}


@pytest.mark.parametrize(("workers", "count"), [(8, 8), (10, 3), (7, 1), (12, 5)])
def test_every_rank_has_one_learner_and_neighbours_share_it(workers: int, count: int) -> None:
    among = Learners(workers, count)
    firsts = [among.of(rank) for rank in range(workers)]
    sizes = [[learner for learner, _ in firsts].count(number) for number in range(count)]
    assert sizes == [among.size(number) for number in range(count)] and max(sizes) - min(sizes) <= 1
    assert all(first <= rank < first + among.size(learner) for rank, (learner, first) in enumerate(firsts))
