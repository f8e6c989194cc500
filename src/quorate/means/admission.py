"""Admission of newcomers where all members form sums together: they agree by a mark in the headers of the sums.

A newcomer writes on the board that it waits. Each member marks in its next headers the newcomers that it has seen
there. The first sum that carries a mark, and in which no member ends or pauses, admits the newcomer. All members read
the same numbers between the same two pauses, and form the next sum with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from torch import Tensor

from quorate.core.contracts import Board, Wire
from quorate.core.members import Members


class Admission:
    """Admission to the sums of one optimizer; the mark of rank r is number `first` + r of a header."""

    def __init__(self, wire: Wire, first: int) -> None:
        self._wire, self._first = wire, first
        self.is_open = wire.max_size > wire.size
        """Whether newcomers are possible: the wire allows more workers than it has."""
        self.members = Members(wire.size)
        """The workers that form the sums, the dead among them: agreed by sums, so that a newcomer is among them before
        it is among `Wire.members`. Only `take_in` changes them."""
        self.most = wire.max_size
        """The most members that may live at once; further newcomers wait until one has died."""
        self.entering: list[int] = []
        """Ranks that the newest sums have admitted, and that are no members yet."""

    @property
    def living(self) -> list[int]:
        """Ranks of the members that live, in order."""
        return sorted(self.members.everyone - self._wire.dead)

    def put(self, header: Tensor | list[float]) -> None:
        """Mark the newcomers that wait in the header of a sum; call it only where `is_open`. Cost: one read of the
        board."""
        for rank in set(waiting(self._wire.board, self._wire.name)) - self.members.everyone:
            header[self._first + rank] = 1.0

    def learn(self, header: Sequence[float], counted: int) -> None:
        """Read which newcomers a sum of `counted` members admits, of whom none ends or pauses.

        Call it only where `is_open`.
        """
        room = max(0, self.most - counted - len(self.entering))
        outside = set(range(self._wire.size, self._wire.max_size)) - self.members.everyone - set(self.entering)
        self.entering += [rank for rank in sorted(outside) if header[self._first + rank] > 0][:room]

    def take_in(self, newcomers: Iterable[int]) -> None:
        """Make `newcomers` members."""
        self.members = self.members.after(joined=newcomers)
        self.entering = [rank for rank in self.entering if rank not in self.members.joined]


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
