"""Hosts that are lost and cables that are cut: the majority goes on, and the others end with one sentence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cut_trainings import CutTraining, Ended
from tests.support.hosts import Direction, are_possible, hosts

on_hosts = pytest.mark.on_hosts
pytestmark = pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces")

SILENCE = 2.0
STRATEGIES: dict[str, dict[str, Any]] = {
    "eager-majority": {"strategy": "eager-majority"},
    "all-reduce": {"strategy": "all-reduce", "on_death": "continue"},
    "diloco": {"strategy": "diloco", "sync_every": 4},
}


def is_one_sentence(ended: Ended) -> bool:
    lines = [line for line in ended.said.splitlines() if line]
    return ended.status == 1 and len(lines) == 1 and lines[0].startswith("quorate: rank")


def are_equal_ends(ended: list[Ended]) -> bool:
    ends = [one.out.split() for one in ended]
    return (
        all(one.status == 0 for one in ended) and {end[0] for end in ends} == {"end"} and len({e[1] for e in ends}) == 1
    )


LOST: list[Any] = [(strategy, lost) for strategy in STRATEGIES for lost in (0, 2)]
CUT: list[Any] = [(away, way) for away in (0, 2) for way in ("both", "out", "in")]


@pytest.mark.parametrize(("strategy", "lost"), LOST[:1] + [pytest.param(*one, marks=on_hosts) for one in LOST[1:]])
def test_a_host_is_lost(strategy: str, lost: int, tmp_path: Path) -> None:
    left = [rank for rank in range(3) if rank != lost]
    with hosts(3) as on, CutTraining(on, tmp_path, SILENCE, **STRATEGIES[strategy]) as training:
        begin = time.monotonic()
        on[lost].lose()
        training.until(lambda: all(training.times(rank)[-1] > begin + SILENCE for rank in left))
        training.goes_on(left)
        assert are_equal_ends(training.finish(left))


@pytest.mark.parametrize(("away", "direction"), CUT[:1] + [pytest.param(*one, marks=on_hosts) for one in CUT[1:]])
def test_a_cable_is_cut_for_good(away: int, direction: Direction, tmp_path: Path) -> None:
    left = [rank for rank in range(3) if rank != away]
    with hosts(3) as on, CutTraining(on, tmp_path, SILENCE, **STRATEGIES["eager-majority"]) as training:
        on[away].cut(direction)
        ended = training.stopped(away)
        assert is_one_sentence(ended), ended
        training.goes_on(left)
        on[away].heal()
        training.goes_on(left)
        assert are_equal_ends(training.finish(left))


@on_hosts
def test_one_that_waits_for_nobody_stops_as_well(tmp_path: Path) -> None:
    """Rank 0 forms rounds by itself for as long as it may."""
    with hosts(3) as on, CutTraining(on, tmp_path, SILENCE, strategy="eager-solo") as training:
        on[0].cut()
        assert is_one_sentence(training.stopped(0))
        training.goes_on([1, 2])
        assert are_equal_ends(training.finish([1, 2]))


@on_hosts
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_short_cut_is_outlived_by_all(strategy: str, tmp_path: Path) -> None:
    with hosts(3) as on, CutTraining(on, tmp_path, 5.0, **STRATEGIES[strategy]) as training:
        on[1].cut()
        time.sleep(1.5)
        on[1].heal()
        training.goes_on([0, 1, 2])
        assert are_equal_ends(training.finish([0, 1, 2]))


@on_hosts
def test_of_two_halves_the_first_goes_on(tmp_path: Path) -> None:
    with hosts(2) as (first, second):
        on = [first, first, second, second]
        with CutTraining(on, tmp_path, SILENCE, **STRATEGIES["eager-majority"]) as training:
            second.cut()
            assert all(is_one_sentence(training.stopped(rank)) for rank in (2, 3))
            training.goes_on([0, 1])
            assert are_equal_ends(training.finish([0, 1]))


@on_hosts
@pytest.mark.timeout(300)
def test_a_slow_link_is_no_death(tmp_path: Path) -> None:
    """Of 1 Mbit/s: each gradient of 128 kB takes a second."""
    choice = {**STRATEGIES["eager-majority"]}
    with hosts(3) as on, CutTraining(on, tmp_path, 5.0, width=3200, **choice) as training:
        on[1].limit("1mbit")
        begin = time.monotonic()
        training.until(lambda: time.monotonic() > begin + 6.0)
        training.goes_on([0, 1, 2], steps=3)
        on[1].limit(None)
        assert are_equal_ends(training.finish([0, 1, 2]))


@on_hosts
@pytest.mark.parametrize("dead", [0, 1])
def test_a_worker_is_killed(dead: int, tmp_path: Path) -> None:
    """Which its host says at once."""
    with hosts(2) as (first, second):
        on = [first, first, second]
        left = [rank for rank in range(3) if rank != dead]
        with CutTraining(on, tmp_path, 30.0, **STRATEGIES["eager-majority"]) as training:
            training.workers[dead].kill()
            training.goes_on(left)
            assert are_equal_ends(training.finish(left))


@on_hosts
def test_one_joins_on_a_host_that_was_not_there_before(tmp_path: Path) -> None:
    """In place of those of a host that was lost, or beside them."""
    with hosts(4) as on, CutTraining(on[:3], tmp_path, SILENCE, most=4, **STRATEGIES["eager-majority"]) as training:
        on[2].lose()
        training.goes_on([0, 1])
        training.join(on[3])
        training.goes_on([0, 1, 3])
        on[1].lose()
        training.goes_on([0, 3])
        assert are_equal_ends(training.finish([0, 3]))


@on_hosts
def test_a_run_on_one_host_is_not_joined_from_another(tmp_path: Path) -> None:
    here = STRATEGIES["eager-majority"]
    with hosts(2) as on, CutTraining([on[0], on[0]], tmp_path, SILENCE, most=3, **here) as training:
        training.join(on[1])
        ended = training.stopped(2)
        assert ended.status == 2 and "on that host only" in ended.said, ended
        training.goes_on([0, 1])
        assert are_equal_ends(training.finish([0, 1]))
