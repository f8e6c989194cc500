"""The end by time: the same batch on workers that wait for each other, and few questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest

from quorate.core.contracts import Board, Wire
from quorate.data.limit import Limit
from quorate.wire.board import MemoryBoard
from quorate.wire.virtual.world import VirtualWorld


class Counting:
    """A board that tells how often it is read."""

    def __init__(self, board: Board, tell: Callable[[], None]) -> None:
        self.set, self._get, self._tell = board.set, board.get, tell

    def get(self, key: str) -> bytes | None:
        self._tell()
        return self._get(key)


def taken(size: int, seconds: float, batch: float, *, waits: bool, slow: float = 1.0) -> list[tuple[int, float, int]]:
    """By rank: batches, when it ended, and how often it asked the board. The last rank is `slow` times slower."""
    looks: Counter[int] = Counter()

    def train(wire: Wire) -> tuple[int, float, int]:
        limit = Limit(wire.channel("limit"), seconds)
        limit._wire.board = Counting(wire.board, lambda: looks.update([wire.rank]))  # type: ignore[assignment]
        count, is_last = 0, wire.rank == wire.size - 1
        while not limit.is_reached():
            wire.clock.sleep(batch * (slow if is_last else 1.0))
            count += 1
            if waits:
                wire.barrier().wait()
        return count, wire.clock.now(), looks[wire.rank]

    return VirtualWorld(size, seed=1).run(train)


@pytest.mark.parametrize("batch", [1e-4, 1e-3, 0.013, 0.3])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_those_that_wait_for_each_other_stop_at_the_same_batch(size: int, batch: float) -> None:
    seconds = 0.4 if batch < 1e-3 else 2.0
    ends = taken(size, seconds, batch, waits=True, slow=1.5)
    assert len({count for count, _, _ in ends}) == 1
    assert all(seconds <= ended < seconds + 3 * max(0.02, 1.5 * batch) for _, ended, _ in ends)


@pytest.mark.parametrize("slow", [0, 1])
def test_nobody_is_ahead_where_epochs_end(slow: int) -> None:
    """One is slow to ask; the other asks twice meanwhile: where an epoch ends, and for the first batch of the next."""

    def train(wire: Wire) -> int:
        limit, count = Limit(wire.channel("limit"), 1.0), 0
        while True:
            wire.clock.sleep(0.3 if wire.rank == slow else 0.0)
            if limit.is_reached():
                return count
            limit.had_none()
            if limit.is_reached():
                return count
            count += 1
            wire.barrier().wait()

    first, second = VirtualWorld(2, seed=1).run(train)
    assert first == second and first > 2


@pytest.mark.parametrize("batch", [1e-4, 1e-3, 0.013])
def test_the_board_is_asked_some_fifty_times_a_second(batch: float) -> None:
    seconds = 0.8 if batch < 1e-3 else 2.0
    for count, _, looks in taken(3, seconds, batch, waits=True)[1:]:
        assert looks <= 40 + max(count / 64, seconds / 0.02, seconds / batch / max(1, int(0.02 / batch))) * 1.1


def test_a_faster_worker_stops_as_soon_as_it_looks() -> None:
    ends = taken(3, 1.0, 1e-3, waits=False, slow=0.5)
    assert ends[2][0] > 1.8 * ends[0][0]
    assert all(1.0 <= ended < 1.05 for _, ended, _ in ends)


def test_a_slower_worker_stops_when_it_has_as_many() -> None:
    ends = taken(2, 1.0, 1e-3, waits=False, slow=2.0)
    assert ends[1][0] == ends[0][0]


class Hand:
    """A wire, and its clock, that are moved by hand."""

    def __init__(self, rank: int, board: MemoryBoard) -> None:
        self.rank, self.board, self.clock, self.time = rank, board, self, 100.0
        self.alive, self.dead = [0, 1], set[int]()

    def now(self) -> float:
        return self.time


def test_one_that_joined_and_decides_goes_by_when_the_training_began() -> None:
    board = MemoryBoard()
    first, late = Hand(0, board), Hand(2, board)
    early = Limit(cast(Wire, first), 10.0)
    assert not early.is_reached()
    first.time = 103.0
    early.pause(2.0)
    late.time = 105.0
    later = Limit(cast(Wire, late), 10.0)
    assert not later.is_reached()
    late.dead, late.alive = {0, 1}, [2]
    for late.time in (106.0, 111.9):
        assert not later.is_reached()
    late.time = 112.1  # a batch that others may have begun is the last one
    assert [later.is_reached(), later.is_reached()] == [False, True]
