"""What a wire must do when workers die, leave, disagree or are late, in both worlds."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.contract.failure_tasks import (
    MISMATCHES,
    WAITS,
    one_dies,
    one_disagrees,
    one_keeps_others_waiting,
    work_that_is_done_outlives_a_death,
)
from tests.contract.worlds import RealWorkers, VirtualWorkers, Workers, WorkersOnHosts, in_both_worlds, in_words

ON_HOSTS: list[tuple[Workers, int, str, str]] = [
    *((WorkersOnHosts((2, 1)), dead, "crashes", "all_reduce") for dead in (0, 2)),
    *((WorkersOnHosts((1, 1, 1)), 1, "crashes", wait) for wait in ("receive", "board")),
    (WorkersOnHosts((1, 1)), 0, "raises", "all_reduce"),
]
DEATHS: list[Any] = [
    *((VirtualWorkers(size), dead, "crashes", wait) for size in (2, 3, 5) for dead in range(size) for wait in WAITS),
    *((VirtualWorkers(16), 11, "crashes", wait) for wait in WAITS),
    *((VirtualWorkers(3), dead, "raises", "all_reduce") for dead in range(3)),
    *((RealWorkers(3), dead, "crashes", "all_reduce") for dead in range(3)),
    *((RealWorkers(3), 1, "crashes", wait) for wait in WAITS if wait != "all_reduce"),
    (RealWorkers(2), 0, "raises", "all_reduce"),
    (RealWorkers(3), 2, "raises", "receive"),
    *(pytest.param(*one, marks=pytest.mark.on_hosts) for one in ON_HOSTS),
]


@pytest.mark.parametrize(("workers", "dead", "how", "wait"), DEATHS, ids=in_words)
def test_a_death_ends_the_waits_of_all_others(workers: Workers, dead: int, how: str, wait: str) -> None:
    fates = workers.fates(partial(one_dies, dead, how, wait))
    if how == "crashes":
        assert fates[dead].is_crashed
    else:
        assert fates[dead].error == "ZeroDivisionError"
    for rank in set(range(workers.size)) - {dead}:
        seen = fates[rank].result
        assert seen is not None, fates[rank]
        assert (seen.kind, seen.ranks, seen.again) == ("PeerFailed", (dead,), "PeerFailed"), seen
        assert f"rank {dead}" in seen.message
        if isinstance(workers, VirtualWorkers):
            assert seen.seconds < 1.0
        if how == "raises":
            assert "ZeroDivisionError" in seen.message


@pytest.mark.parametrize("workers", in_both_worlds((2, 3, 5), (3,)), ids=in_words)
def test_what_is_done_outlives_a_death(workers: Workers) -> None:
    fates = workers.fates(work_that_is_done_outlives_a_death)
    assert [fate.result for fate in fates[1:]] == [[*range(workers.size), 7]] * (workers.size - 1)


NEEDS_EVERYONE = ("all_reduce", "barrier", "receive", "group", "large sum of a group", "channel")

ENDED: list[tuple[Workers, str]] = [
    *(
        (VirtualWorkers(n), wait)
        for n in (2, 3, 5)
        for wait in ("all_reduce", "barrier", "receive", "group", "large sum of a group", "channel")
    ),
    *((RealWorkers(3), wait) for wait in ("all_reduce", "receive")),
]


@pytest.mark.parametrize(("workers", "wait"), ENDED, ids=in_words)
def test_a_worker_that_ended_is_not_waited_for(workers: Workers, wait: str) -> None:
    ended = workers.size // 2
    fates = workers.fates(partial(one_dies, ended, "ends", wait))
    for rank in set(range(workers.size)) - {ended}:
        seen = fates[rank].result
        assert seen is not None, fates[rank]
        assert (seen.kind, seen.ranks) == ("PeerFailed", (ended,)), seen
        assert f"rank {ended} ended" in seen.message
        if isinstance(workers, VirtualWorkers):
            assert seen.seconds < 2.0


@pytest.mark.parametrize("how", MISMATCHES)
@pytest.mark.parametrize("workers", in_both_worlds((2, 3, 5, 16), (2, 3)), ids=in_words)
def test_workers_that_call_different_things_all_hear_of_it(workers: Workers, how: str) -> None:
    fates = workers.fates(partial(one_disagrees, how))
    for fate in fates:
        assert fate.result is not None, fate
        assert fate.result.kind == "Mismatch", fate.result
        assert f"rank {workers.size - 1}" in fate.result.message


@pytest.mark.parametrize("how", ["barrier", "receive"])
@pytest.mark.parametrize("workers", in_both_worlds((2, 3, 5), (3,)), ids=in_words)
def test_a_timeout_names_who_was_waited_for(workers: Workers, how: str) -> None:
    fates = workers.fates(partial(one_keeps_others_waiting, how))
    for fate in fates[:-1]:
        assert fate.result is not None, fate
        assert (fate.result.kind, fate.result.ranks) == ("WireTimeout", (workers.size - 1,)), fate.result
        assert f"rank {workers.size - 1}" in fate.result.message
        assert fate.result.seconds > 0.29
        if isinstance(workers, VirtualWorkers):
            assert fate.result.seconds < 1.0
