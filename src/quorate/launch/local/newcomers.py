"""Workers that are started while a run is under way: in place of one that died, or one more for whoever asks.

Ranks are never used twice: newcomers have those from the number of workers at the start on. Who wants one more writes
so on the board: `newcomers/wanted` counts those that were asked for, and `newcomers/said/<k>` holds what became of the
k-th, from 1: `rank 5`, or why there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError
from quorate.wire.failure import ended, has_come, report_outsider

_WANTED, _SAID, _ENDED = "newcomers/wanted", "newcomers/said", "newcomers/ended"

_MOST = 64
"""Workers of either kind in `Room`."""
MOST_NEWCOMERS = 2 * _MOST
"""Of one run."""


@dataclass(frozen=True)
class Room:
    """How many may be started: in place of those that died, and for whoever asks."""

    restarts: int = 0
    more: int = 0

    def __post_init__(self) -> None:
        for name, count in (("--restart", self.restarts), ("--room", self.more)):
            if not 0 <= count <= _MOST:
                raise ConfigurationError(f"{name} is {count}; it is a number of workers from 0 to {_MOST}")

    @property
    def all(self) -> int:
        """Together."""
        return self.restarts + self.more


class Newcomers:
    """Those of one run, which began with `size` workers; `start(rank, seat)` starts one in the place of `seat`."""

    def __init__(self, board: Board, size: int, room: Room, start: Callable[[int, int], None]) -> None:
        self._board, self._size, self._room, self._start = board, size, room, start
        self._restarts = self._more = self._answered = 0
        self._seats: dict[int, int] = {}

    def died(self, rank: int) -> int | None:
        """`rank` has died, and the others went on: the rank that is started in its place; None where none is."""
        if self._restarts >= self._room.restarts:
            return None
        self._restarts += 1
        return self._begin(self._seats.get(rank, rank))

    def look(self) -> list[int]:
        """Start those that somebody has asked for since the last look; their ranks."""
        wanted = int(self._board.get(_WANTED) or b"0")
        found = []
        while self._answered < wanted:
            self._answered += 1
            if self._more < self._room.more:
                self._more += 1
                found.append(self._begin(self._size + self._more - 1))
                self._board.set(f"{_SAID}/{self._answered}", b"rank %d" % found[-1])
            else:
                given = f"with --room {self._room.more}" if self._room.more else "without --room"
                why = f"there is no room for one more: the run was started {given}"
                self._board.set(f"{_SAID}/{self._answered}", why.encode())
        return found

    def _begin(self, seat: int) -> int:
        rank = self._size + len(self._seats)
        self._seats[rank] = seat
        self._start(rank, seat)
        return rank

    def has_come(self, rank: int) -> bool:
        """See `wire.failure.has_come`."""
        return has_come(self._board, self._size, rank)

    def came_to_nothing(self, rank: int, reason: str) -> None:
        """`rank` has ended before it trained."""
        self._board.set(f"{_ENDED}/{rank}", b"1")
        report_outsider(self._board, rank, reason)


def has_ended(board: Board, rank: int) -> bool:
    """Whether a newcomer has ended before it trained."""
    return board.get(f"{_ENDED}/{rank}") is not None or board.get(ended(rank)) is not None


def ask_for_one(board: Board, timeout: float) -> str:
    """Ask a running launcher for one more worker; what it says. Raises `WireTimeout`."""
    while True:
        written = board.get(_WANTED)
        number = int(written or b"0") + 1
        if board.swap(_WANTED, written, b"%d" % number):
            break
    key = f"{_SAID}/{number}"
    board.wait([key], timeout)
    return (board.get(key) or b"").decode()
