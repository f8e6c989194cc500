"""Failures: what is read, and the schedule that is drawn of it."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise, takewhile

import pytest

from quorate.core.errors import ConfigurationError
from quorate.inject.failures import Failure, failures_from


def test_what_is_written_is_read() -> None:
    failures = failures_from("mtbf=1y, repair=30min,restart=2s,stop=0.2:3s,slow=0.1:x4:5s,burst=0.1:8")
    assert failures.mtbf == 365.25 * 86400
    assert (failures.repair, failures.restart) == (1800.0, 2.0)
    assert (failures.stops, failures.stop) == (0.2, 3.0)
    assert (failures.slows, failures.factor, failures.slow) == (0.1, 4.0, 5.0)
    assert (failures.bursts, failures.together) == (0.1, 8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mtbf", "is not a failure"),
        ("often=3s", "is not a failure"),
        ("repair=3s", "lacks mtbf"),
        ("mtbf=0s", "above 0"),
        ("mtbf=20", "has no unit: 20ms or 20s"),
        ("mtbf=3s,mtbf=3s", "twice"),
        ("mtbf=3s,stop=2:3s", "from 0 to 1"),
        ("mtbf=3s,stop=0.7:1s,slow=0.7:x2:1s", "more than all of them"),
        ("mtbf=3s,stop=0.2", "not complete"),
        ("mtbf=3s,burst=0.1:x", "not complete"),
        ("mtbf=3s,burst=0.1:0", "1 or more"),
        ("mtbf=3s,slow=0.1:x0.5:1s", "x1 or more"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        failures_from(text)


def schedule(text: str, workers: int, seconds: float, seed: int = 0) -> list[Failure]:
    return list(takewhile(lambda failure: failure.time < seconds, failures_from(text).schedule(workers, seed)))


@pytest.mark.parametrize("text", ["mtbf=100s", "mtbf=100s,burst=0.3:8"])
def test_every_rank_is_struck_once_in_mtbf_seconds(text: str) -> None:
    struck = Counter(rank for failure in schedule(text, 32, 10_000.0) for rank in failure.ranks)
    assert set(struck) == set(range(32))
    assert sum(struck.values()) / 32 == pytest.approx(100, rel=0.05)
    assert min(struck.values()) > 60
    assert max(struck.values()) < 150


def test_times_between_failures_are_exponential() -> None:
    times = [0.0, *(failure.time for failure in islice(failures_from("mtbf=8s").schedule(8, 3), 8_000))]
    between = [later - now for now, later in pairwise(times)]
    mean = sum(between) / len(between)
    assert mean == pytest.approx(1.0, rel=0.04)
    assert sum(seconds > 2 for seconds in between) / len(between) == pytest.approx(2.718**-2, rel=0.1)


def test_shares_of_kinds_and_their_lengths_are_as_written() -> None:
    failures = schedule("mtbf=1s,repair=7s,stop=0.3:2s,slow=0.2:x4:5s", 10, 2_000.0)
    kinds = Counter(failure.kind for failure in failures)
    assert {kind: count / len(failures) for kind, count in kinds.items()} == pytest.approx(
        {"death": 0.5, "stop": 0.3, "slow": 0.2}, rel=0.05
    )
    stops = [failure.seconds for failure in failures if failure.kind == "stop"]
    assert sum(stops) / len(stops) == pytest.approx(2.0, rel=0.05)
    assert {failure.seconds for failure in failures if failure.kind == "death"} == {7.0}
    assert {failure.factor for failure in failures if failure.kind == "slow"} == {4.0}


def test_a_burst_strikes_ranks_of_one_host() -> None:
    for failure in schedule("mtbf=10s,burst=1:4", 10, 100.0):
        assert list(failure.ranks) in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])


def test_a_seed_tells_the_schedule() -> None:
    text = "mtbf=10s,stop=0.5:1s,burst=0.5:2"
    assert schedule(text, 4, 100.0, seed=1) == schedule(text, 4, 100.0, seed=1)
    assert schedule(text, 4, 100.0, seed=1) != schedule(text, 4, 100.0, seed=2)
