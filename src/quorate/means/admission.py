"""Workers that join where all that train form sums together: by an agreement that travels in the sums themselves.

Who joins writes that it waits on the board. Each worker says in its next sums whom it has seen there; the first sum in
which anybody says so, and nobody ends or pauses, lets it in: all workers learn that from the same numbers, in the same
stretch between two pauses, and the next sum is formed with the newcomer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from torch import Tensor

from quorate.core.contracts import Board, Wire


class Admission:
    """Those of one optimizer's sums; what is said of rank r stands in a header at `first` + r."""

    def __init__(self, wire: Wire, first: int) -> None:
        self._wire, self._first = wire, first
        self.is_open = wire.max_size > wire.size
        """Whether anybody may join at all."""
        self.members = set(range(wire.size))
        self.entering: list[int] = []
        """Let in by the newest sums, and not taken in yet."""

    def put(self, header: Tensor | list[float]) -> None:
        """Write into the header of a sum which workers wait; called where it `is_open`. Cost: a word with the board."""
        for rank in set(waiting(self._wire.board, self._wire.name)) - self.members:
            header[self._first + rank] = 1.0

    def learn(self, header: Sequence[float]) -> None:
        """Read who is let in by a sum in which nobody ends or pauses; called where it `is_open`."""
        outside = set(range(self._wire.size, self._wire.max_size)) - self.members - set(self.entering)
        self.entering += [rank for rank in sorted(outside) if header[self._first + rank] > 0]

    def take_in(self) -> list[int]:
        """Those that have been let in are members now."""
        found, self.entering = self.entering, []
        self.members.update(found)
        return found


def waiting(board: Board, name: str) -> list[int]:
    """Who waits to join the sums of the wire `name`."""
    return [int(rank) for rank in json.loads(board.get(f"{name}/waiting") or b"[]")]


def wait_outside(board: Board, name: str, rank: int) -> None:
    """`rank` waits from now on."""
    key = f"{name}/waiting"
    while True:
        written = board.get(key)
        known = [] if written is None else json.loads(written)
        if board.swap(key, written, json.dumps([*known, rank]).encode()):
            return
