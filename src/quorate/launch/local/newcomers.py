"""Workers that are started while a run is under way: in place of one that died, or one more for whoever asks.

Ranks are never used twice: newcomers have those from the number of workers at the start on. A request for one more
worker is written to the board. `newcomers/wanted` counts the requests, and `newcomers/said/<k>` holds the answer to the
k-th, from 1: `rank 5`, or the reason why there is none. The address of the board is in the run's folder, readable by
this user alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.wire.board import SocketBoard
from quorate.wire.failure import ended, has_come, report_outsider

_WANTED, _SAID, _ENDED = "newcomers/wanted", "newcomers/said", "newcomers/ended"

MOST = 64
"""Workers of either kind in `Room`."""
_TRIES = 3
MOST_NEWCOMERS = 2 * MOST
"""The most newcomers of one run."""

_DOOR = "board.address"


@dataclass(frozen=True)
class Room:
    """How many workers may be started: in place of dead ones, and on request."""

    restarts: int = 0
    more: int = 0

    def __post_init__(self) -> None:
        for name, count in (("--restart", self.restarts), ("--max-joins", self.more)):
            if not 0 <= count <= MOST:
                raise ConfigurationError(f"{name} is {count}; it must be a number of workers from 0 to {MOST}")

    @property
    def all(self) -> int:
        """Together."""
        return self.restarts + self.more


class Newcomers:
    """The newcomers of one run, which began with `size` workers; `start(rank, replaced_rank)` starts one in the place
    of rank `replaced_rank`.

    A dead worker's place stays empty for `repair` seconds.
    """

    def __init__(
        self,
        board: Board,
        size: int,
        room: Room,
        start: Callable[[int, int], None],
        *,
        repair: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board, self._size, self._room, self._start = board, size, room, start
        self._repair, self._now = repair, now
        self._restarts = self._more = self._answered = 0
        self._replaced: dict[int, int] = {}
        self._vain: dict[int, int] = {}
        """By place, the number of failed starts."""
        self._empty: list[tuple[float, int]] = []
        """From when on one may be started in the place of which dead rank."""

    def died(self, rank: int) -> None:
        """`rank` has died, and the others went on: `look` starts another in its place, where there is room."""
        if self._restarts < self._room.restarts:
            self._restarts += 1
            self._empty.append((self._now() + self._repair, rank))

    def look(self) -> list[tuple[int, int | None]]:
        """Start the newcomers that are due; return their ranks, and whom they replace (None: they were requested)."""
        started: list[tuple[int, int | None]] = []
        while self._empty and self._empty[0][0] <= self._now():
            dead = self._empty.pop(0)[1]
            started.append((self._begin(self._replaced.get(dead, dead)), dead))
        wanted = int(self._board.get(_WANTED) or b"0")
        while self._answered < wanted:
            self._answered += 1
            if self._more < self._room.more:
                self._more += 1
                rank = self._begin(self._size + self._more - 1)
                started.append((rank, None))
                self._board.set(f"{_SAID}/{self._answered}", b"rank %d" % rank)
            else:
                joins = f"with --max-joins {self._room.more}" if self._room.more else "without --max-joins"
                why = f"no more workers can join: the run was started {joins}"
                self._board.set(f"{_SAID}/{self._answered}", why.encode())
        return started

    def _begin(self, replaced_rank: int) -> int:
        rank = self._size + len(self._replaced)
        self._replaced[rank] = replaced_rank
        self._start(rank, replaced_rank)
        return rank

    def has_come(self, rank: int) -> bool:
        """See `wire.failure.has_come`."""
        return has_come(self._board, self._size, rank)

    def failed_to_join(self, rank: int, reason: str, *, by_chance: bool = False) -> None:
        """`rank` has ended before it trained; `by_chance`: another may come further, and is started if it had a place.

        At most `_TRIES` in a place have come to nothing: a script may raise always.
        """
        replaced_rank = self._replaced.get(rank, rank)
        self._vain[replaced_rank] = self._vain.get(replaced_rank, 0) + 1
        if by_chance and replaced_rank < self._size and self._vain[replaced_rank] < _TRIES:
            self.died(rank)
        self._board.set(f"{_ENDED}/{rank}", b"1")
        report_outsider(self._board, rank, reason)


def has_ended(board: Board, rank: int) -> bool:
    """Whether a newcomer has ended before it trained."""
    return board.get(f"{_ENDED}/{rank}") is not None or board.get(ended(rank)) is not None


def ask_for_one(board: Board, timeout: float) -> str:
    """Ask a running launcher for one more worker, and return its answer. Raises `WireTimeout`."""
    while True:
        written = board.get(_WANTED)
        number = int(written or b"0") + 1
        if board.swap(_WANTED, written, b"%d" % number):
            break
    key = f"{_SAID}/{number}"
    board.wait([key], timeout)
    return (board.get(key) or b"").decode()


@contextmanager
def open_to_all(folder: Path, board: str) -> Iterator[None]:
    """Publish the address of the board in the run's folder inside."""
    path = folder / _DOOR
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, board.encode())
    finally:
        os.close(handle)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


def board_of(folder: Path) -> SocketBoard:
    """Return the board of the run in `folder`. Raises `ConfigurationError` if no run that others may join is there."""
    try:
        return SocketBoard((folder / _DOOR).read_text(encoding="utf-8"))
    except (OSError, ValueError, QuorateError):
        raise ConfigurationError(
            f"no run that workers can join is running in {folder}; start one with quorate run --max-joins N"
        ) from None
