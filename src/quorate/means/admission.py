"""Admission of newcomers where all members form sums together: they agree by a mark in the headers of the sums.

A newcomer writes on the board that it waits. Each member marks in its next headers the newcomers that it has seen
there. The first sum that carries a mark, and in which no member ends or pauses, admits the newcomer: all members read
the same numbers between the same two pauses, and form the next sum with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from torch import Tensor

from quorate.core.contracts import Board, Wire


class Admission:
    """Admission to the sums of one optimizer; the mark of rank r is number `first` + r of a header."""

    def __init__(self, wire: Wire, first: int) -> None:
        self._wire, self._first = wire, first
        self.is_open = wire.max_size > wire.size
        """Whether newcomers are possible: the wire allows more workers than it has."""
        self.members = set(range(wire.size))
        self.entering: list[int] = []
        """Ranks that the newest sums have admitted, and `take_in` has not returned yet."""

    def put(self, header: Tensor | list[float]) -> None:
        """Mark the newcomers that wait in the header of a sum; call it only where `is_open`. Cost: one read of the
        board."""
        for rank in set(waiting(self._wire.board, self._wire.name)) - self.members:
            header[self._first + rank] = 1.0

    def learn(self, header: Sequence[float]) -> None:
        """Read which newcomers a sum admits in which no member ends or pauses; call it only where `is_open`."""
        outside = set(range(self._wire.size, self._wire.max_size)) - self.members - set(self.entering)
        self.entering += [rank for rank in sorted(outside) if header[self._first + rank] > 0]

    def take_in(self) -> list[int]:
        """Make the admitted newcomers members, and return their ranks in order."""
        admitted, self.entering = self.entering, []
        self.members.update(admitted)
        return admitted


def waiting(board: Board, name: str) -> list[int]:
    """Return the ranks that wait to join the sums of the wire `name`."""
    return [int(rank) for rank in json.loads(board.get(f"{name}/waiting") or b"[]")]


def wait_outside(board: Board, name: str, rank: int) -> None:
    """Add `rank` to those that wait to join the sums of the wire `name`."""
    key = f"{name}/waiting"
    while True:
        written = board.get(key)
        ranks = [] if written is None else json.loads(written)
        if board.swap(key, written, json.dumps([*ranks, rank]).encode()):
            return
