"""Sums that are used only when everyone has them: what `done` says of them, that they move on while it is asked, and
what becomes of the parts that had travelled when a worker dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire, Work
from quorate.core.errors import PeerFailed
from quorate.core.vectors import Flat, header_in
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.wire.failure import allow_going_on
from quorate.wire.metered import Wrapped
from quorate.wire.virtual.world import VirtualWorld

LAYOUT = layout_of([("x", torch.zeros(3))])
PARTS = layout_of([(name, torch.zeros(3)) for name in "abc"], header=2, part_bytes=4, first_part_bytes=4)
"""Three parts; the second number of the header says that one of them changed."""
DIES = 2
T = TypeVar("T")


def vector(rank: int) -> Flat:
    x = Flat.zeros(LAYOUT)
    x.parts[0].fill_(rank + 1.0)
    return x


def in_parts(rank: int, *, changed: bool = False) -> Flat:
    x = Flat.zeros(PARTS)
    for part in x.parts:
        part.fill_(rank + 1.0)
    header_in(x)[0], header_in(x)[1] = 1.0, float(changed)
    return x


def begun(wire: Wire) -> FaultTolerantSum:
    allow_going_on(wire.board, wire.size, name="t")
    wire.tolerate_deaths("gone")
    wire.barrier().wait()
    return FaultTolerantSum(LAYOUT, wire)


def begun_in_parts(wire: Wire) -> FaultTolerantSum:
    begun(wire)
    return FaultTolerantSum(PARTS, wire, changed=slice(1, 2))


class Refusing(Wrapped):
    """Refuses sums where somebody has died, as a wire may that has lost a connection."""

    refused = 0

    def _again(self, inner: Wire) -> Wire:
        return Refusing(inner)

    def _call(self, operation: str, launch: Callable[[], Work[T]], argument: Any, peer: int | None) -> Work[T]:
        if operation == "all_reduce" and self.inner.dead:
            self.refused += 1
            raise PeerFailed(f"{sorted(self.inner.dead)} died", sorted(self.inner.dead))
        return launch()


@pytest.mark.parametrize("size", [2, 3])
def test_a_sum_is_done_when_everyone_has_it_and_then_nobody_waits(size: int) -> None:
    """The last worker has launched, but looks at nothing for a second; the first only asks, and never waits."""

    def task(wire: Wire) -> tuple[list[bool], float, list[float]]:
        sums, clock, asked = begun(wire), wire.clock, []
        work = sums.start(vector(wire.rank), lambda: vector(wire.rank))
        if wire.rank:
            clock.sleep(1.0 if wire.rank == wire.size - 1 else 0.1)
        else:
            for _ in range(3):
                clock.sleep(0.2)
                asked.append(work.done())
            clock.sleep(1.0)
            asked += [work.done(), work.done()]
        begin = clock.now()
        total = work.wait()
        return asked, clock.now() - begin, total.parts[0].tolist()

    results = VirtualWorld(size, timeout=30.0).run(task)
    assert results[0][0] == [False] * 3 + [True] * 2
    assert results[0][1] == 0.0
    assert all(result[2] == results[0][2] for result in results)


def test_asking_alone_brings_a_sum_to_its_end() -> None:
    def task(wire: Wire) -> int:
        work, asked = begun(wire).start(vector(wire.rank), lambda: vector(wire.rank)), 0
        while asked < 100 and not work.done():
            asked += 1
            wire.clock.sleep(0.01)
        assert work.wait(0.0).parts[0].tolist() == [6.0] * 3
        return asked

    assert max(VirtualWorld(3, timeout=30.0).run(task)) < 10


def test_it_is_formed_anew_by_asking_where_one_has_died() -> None:
    def task(wire: Wire) -> tuple[int, list[float]]:
        sums = begun(wire)
        if wire.rank == DIES:
            wire.crash()
        work = sums.start(vector(wire.rank), lambda: vector(wire.rank))
        for _ in range(100):
            wire.clock.sleep(0.01)
            if work.done():
                break
        numbers = work.wait(0.0).parts[0].tolist()
        return sums.counted, numbers

    outcomes = VirtualWorld(3, timeout=30.0).outcomes(task)
    assert [outcome.result for outcome in outcomes[:DIES]] == [(2, [3.0] * 3)] * 2


@pytest.mark.parametrize("refuses", [True, False], ids=["refused", "launched"])
@pytest.mark.parametrize("reached", [0, 1, 2])
def test_whoever_has_launched_which_parts_all_that_are_left_form_the_same_sum(reached: int, refuses: bool) -> None:
    """Rank 0 launches all parts before the death, rank 1 so many, and the others when it is known; the dead, two."""

    def task(wire: Wire) -> tuple[int, list[float], bool, int]:
        own = Refusing(wire) if refuses else wire
        sums, x = begun_in_parts(own), in_parts(wire.rank)
        for part in range(2):
            if wire.rank == 1 and part == reached:
                while not wire.dead:
                    wire.clock.sleep(0.01)
            sums.part_ready(part, x.parts[part])
        if wire.rank == DIES:
            wire.crash()
        work = sums.start(x, lambda: in_parts(wire.rank))
        total = work.wait()
        return sums.counted, torch.cat(total.parts).tolist(), total is x, getattr(own, "refused", 0)

    outcomes = VirtualWorld(3, timeout=30.0).outcomes(task)
    results = [outcome.result for outcome in outcomes[:DIES]]
    assert [result[:3] for result in results if result is not None] == [(2, [3.0] * 9 + [2.0, 0.0], False)] * 2
    assert results[1] is not None
    assert results[1][3] == int(refuses and reached < 2), "nothing more is launched after the first refusal"


def test_where_a_part_changed_the_sum_is_formed_anew_and_the_next_one_travels_as_ever() -> None:
    """Rank 1's first sum has a part that changed: what had travelled of it was 100, what it has kept is right."""

    def task(wire: Wire) -> list[Any]:
        sums, totals = begun_in_parts(wire), []
        for number in range(3):
            x, early = in_parts(wire.rank), wire.rank == 1 and number == 0
            if early:
                x.parts[0].fill_(100.0)
                header_in(x)[1] = 1.0
            sums.part_ready(0, x.parts[0])
            total = sums.start(x, lambda: in_parts(wire.rank)).wait()
            totals.append((torch.cat(total.parts).tolist(), sums.counted, sums.is_whole, total is x))
        return totals

    right = [6.0] * 9 + [3.0, 0.0]
    for totals in VirtualWorld(3, timeout=30.0).run(task):
        assert totals == [(right, 3, True, False), (right, 3, True, True), (right, 3, True, True)]


@pytest.mark.parametrize("changes", [True, False], ids=["changed", "death"])
def test_words_about_sums_do_not_pile_up_on_the_board(changes: bool) -> None:
    def task(wire: Wire) -> None:
        sums = begun_in_parts(wire)
        for number in range(40):
            if wire.rank == DIES and number == 2 and not changes:
                wire.crash()
            x = in_parts(wire.rank, changed=changes)
            sums.start(x, lambda: in_parts(wire.rank)).wait()

    world = VirtualWorld(3, timeout=30.0)
    world.outcomes(task)
    board = world.stage.board
    assert len([key for key in [*board._values, *board._counters] if "/sum/" in key]) < 20
