"""What collectives do where workers outlive each other: they end for everyone, whomever a death leaves out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from quorate.core.contracts import Wire, Work
from quorate.core.errors import WireTimeout
from quorate.wire.failure import allow_going_on, note_training, wait_for_all_to_say
from tests.contract.failure_tasks import Seen, seen
from tests.contract.worlds import RealWorkers, VirtualWorkers, Workers, WorkersOnHosts, in_both_worlds, in_words

COLLECTIVES: dict[str, Callable[[Wire], Work[Any]]] = {
    "all_reduce": lambda wire: wire.all_reduce(torch.ones(3)),
    "broadcast": lambda wire: wire.broadcast(torch.ones(3), IS_LATE),
    "reduce": lambda wire: wire.reduce(torch.ones(3), 0),
    "all_gather": lambda wire: wire.all_gather(torch.ones(wire.rank)),
    "all_gather_into": lambda wire: wire.all_gather_into(torch.zeros(99), lambda into: None),
    "barrier": lambda wire: wire.barrier(),
    "group": lambda wire: wire.group(range(wire.size)).all_reduce(torch.ones(2)),
    "large sum of a group": lambda wire: wire.group(range(wire.size)).all_reduce(torch.ones(1 << 15)),
    "channel": lambda wire: wire.channel("c").all_reduce(torch.ones(2)),
}
DIES, IS_LATE = 1, 2


def one_dies_after_it_has_called(collective: str, times: int, wire: Wire) -> Seen | None:
    """Rank 1 dies once it has called, and rank 2, which has not, calls nothing any more; the others have called."""
    allow_going_on(wire.board, wire.size, name="t")
    wire.tolerate_deaths("gone")
    wire.connect(torch.device("cpu"))
    wire.barrier().wait()
    call = COLLECTIVES[collective]
    for _ in range(times):
        call(wire).wait()
    if wire.rank == IS_LATE:
        sees_it(wire)
        return None
    work = call(wire)
    if wire.rank == DIES:
        wire.clock.sleep(0.2)  # what it has sent is on its way
        wire.crash()
    found = seen(wire, lambda: work.wait(20.0), lambda: work.wait(20.0))
    wire.board.set("seen", b"1")
    return found


def sees_it(wire: Wire) -> None:
    """Returns when it has seen the death and the others have had time to."""
    while not wire.dead:
        wire.clock.sleep(0.01)
    wire.board.wait(["seen"], 30.0)


def work_is_done_by_a_death(collective: str, wire: Wire) -> list[bool]:
    """As above; rank 0 never waits, and only asks."""
    allow_going_on(wire.board, wire.size, name="t")
    wire.tolerate_deaths("gone")
    wire.barrier().wait()
    if wire.rank == IS_LATE:
        sees_it(wire)
        return []
    work = COLLECTIVES[collective](wire)
    if wire.rank == DIES:
        wire.clock.sleep(0.2)
        wire.crash()
    before = work.done()
    until = wire.clock.now() + 20.0
    while not work.done() and wire.clock.now() < until:
        wire.clock.sleep(0.01)
    wire.board.set("seen", b"1")
    return [before, work.done()]


CASES: list[Any] = [
    *((VirtualWorkers(3), collective, times) for collective in COLLECTIVES for times in (0, 2)),
    *((RealWorkers(3), collective, 0) for collective in ("all_reduce", "all_gather", "all_gather_into", "group")),
    (RealWorkers(3), "large sum of a group", 0),
    *((RealWorkers(3), collective, 2) for collective in ("all_reduce",)),
    *(
        pytest.param(WorkersOnHosts((2, 1)), collective, 2, marks=pytest.mark.on_hosts)
        for collective in ("all_reduce", "all_gather")
    ),
]


@pytest.mark.parametrize(("workers", "collective", "times"), CASES, ids=in_words)
def test_a_collective_ends_whoever_of_its_members_dies(workers: Workers, collective: str, times: int) -> None:
    fates = workers.fates(partial(one_dies_after_it_has_called, collective, times))
    found = fates[0].result
    assert isinstance(found, Seen), fates[0]
    assert found.kind == found.again == "PeerFailed", found
    assert found.ranks == (DIES,), found
    assert fates[IS_LATE].error is None, fates[IS_LATE]


@pytest.mark.parametrize("collective", ["all_reduce", "group", "large sum of a group"])
@pytest.mark.parametrize("workers", in_both_worlds((3,), (3,)), ids=in_words)
def test_asking_alone_shows_that_it_has_ended(workers: Workers, collective: str) -> None:
    fates = workers.fates(partial(work_is_done_by_a_death, collective))
    assert fates[0].result == [False, True], fates[0]


def one_dies_before_the_slowest_has_said_that_it_goes_on(wire: Wire) -> list[int]:
    """Rank 1 dies as soon as it may step; rank 2 has not come by then, unless it is waited for."""
    if wire.rank == IS_LATE:
        wire.clock.sleep(0.5)
    wire.tolerate_deaths("gone")
    note_training(wire.board, wire.rank, is_under_way=True)
    allow_going_on(wire.board, wire.size, name="t")
    wait_for_all_to_say(wire.board, wire.rank, wire.size, 30.0)
    if wire.rank == DIES:
        wire.crash()
    until = wire.clock.now() + 20.0
    while not wire.dead and wire.clock.now() < until:
        wire.clock.sleep(0.01)
    return sorted(wire.dead)


@pytest.mark.parametrize("workers", in_both_worlds((3,), (3,)), ids=in_words)
def test_who_dies_once_it_may_step_is_outlived(workers: Workers) -> None:
    fates = workers.fates(one_dies_before_the_slowest_has_said_that_it_goes_on)
    assert fates[0].result == fates[IS_LATE].result == [DIES], fates


def waits_for_one_that_never_comes(wire: Wire) -> str:
    if wire.rank == IS_LATE:
        return ""
    note_training(wire.board, wire.rank, is_under_way=True)
    allow_going_on(wire.board, wire.size, name="t")
    with pytest.raises(WireTimeout) as caught:
        wait_for_all_to_say(wire.board, wire.rank, wire.size, 0.2)
    assert caught.value.ranks == (IS_LATE,)
    return str(caught.value)


@pytest.mark.parametrize("workers", in_both_worlds((3,), ()), ids=in_words)
def test_a_timeout_names_who_has_not_said_it(workers: Workers) -> None:
    fates = workers.fates(waits_for_one_that_never_comes)
    assert fates[0].result == "rank 0 waited 0.2 s for rank 2 in quorate.distribute", fates[0]
