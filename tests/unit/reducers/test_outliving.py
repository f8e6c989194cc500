"""Sums that are used only when everyone has them: what `done` says of them, and that they move on while it is asked."""

from __future__ import annotations

import pytest
import torch

from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire
from quorate.core.vectors import Flat
from quorate.reducers.outliving import Outliving
from quorate.wire.failure import let_outlive
from quorate.wire.virtual.world import VirtualWorld

LAYOUT = layout_of([("x", torch.zeros(3))])
DIES = 2


def vector(rank: int) -> Flat:
    x = Flat.zeros(LAYOUT)
    x.parts[0].fill_(rank + 1.0)
    return x


def begun(wire: Wire) -> Outliving:
    let_outlive(wire.board, wire.size, name="t")
    wire.outlives("gone")
    wire.barrier().wait()
    return Outliving(LAYOUT, wire)


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
        found = work.wait()
        return asked, clock.now() - begin, found.parts[0].tolist()

    told = VirtualWorld(size, timeout=30.0).run(task)
    assert told[0][0] == [False] * 3 + [True] * 2
    assert told[0][1] == 0.0
    assert all(one[2] == told[0][2] for one in told)


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
        found = work.wait(0.0).parts[0].tolist()
        return sums.counted, found

    outcomes = VirtualWorld(3, timeout=30.0).outcomes(task)
    assert [one.result for one in outcomes[:DIES]] == [(2, [3.0] * 3)] * 2
