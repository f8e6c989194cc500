"""Admission of newcomers where all members form sums together: they agree by a mark in the headers of the sums.

A newcomer writes on the board that it waits. Each member marks in its next headers the newcomers that it has seen
there. The first sum that carries a mark, and in which no member ends or pauses, admits the newcomer. All members read
the same numbers between the same two pauses, and form the next sum with it.

Where steps wait for nobody, the board admits newcomers between two pauses. A record on the board lists those that have
joined. A newcomer first gets a copy of a replica, and then adds itself to the record. The first worker that pauses
closes the record, so all that pause together agree on its list. The first that steps after a pause opens it again,
unless a worker has ended. A newcomer that finds the record closed, or of a later era than its copy, waits for another
copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from quorate.core.contracts import Board, Wire
from quorate.core.fields import Fields
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


@dataclass(frozen=True)
class _Record(Fields):
    """The workers that have joined, the era between two pauses (from 0), and whether others may join in it."""

    era: int = 0
    is_open: bool = True
    joined: Sequence[int] = ()


class OpenAdmission:
    """Admission to one optimizer. Cost, where newcomers are possible: two words with the board in every step."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._key = wire, f"{wire.name}/members"
        self.era = 0
        """The number of pauses so far."""
        self._asked: set[tuple[int, int]] = set()

    @property
    def is_possible(self) -> bool:
        """Whether newcomers are possible."""
        return self._wire.max_size > self._wire.size

    def waiting(self) -> list[int]:
        """Return the ranks to send a copy to, each once in an era; call it after a step, not after an end."""
        self._open()
        entries = [(rank, self.era) for rank in waiting(self._wire.board, self._wire.name)]
        new = [entry for entry in entries if entry not in self._asked and entry[0] not in self._read()[1].joined]
        self._asked.update(new)
        return [rank for rank, _ in new]

    def close(self) -> tuple[int, ...]:
        """Close the record, as this worker pauses or has ended, and return the ranks that have joined by now."""
        while True:
            written, record = self._read()
            closed = _Record(self.era, is_open=False, joined=record.joined)
            if record == closed or self._write(written, closed):
                self.era += 1
                return tuple(closed.joined)

    def enter(self, era: int) -> tuple[int, ...] | None:
        """Add this worker, which has a copy of that era; return the ranks that have joined, None if it is over."""
        while True:
            written, record = self._read()
            if not record.is_open or record.era != era:
                return None
            longer = replace(record, joined=(*record.joined, self._wire.rank))
            if self._write(written, longer):
                self.era = era
                return tuple(longer.joined)

    def _open(self) -> None:
        written, record = self._read()
        if record.era < self.era:
            self._write(written, _Record(self.era, is_open=True, joined=record.joined))

    def _read(self) -> tuple[bytes | None, _Record]:
        written = self._wire.board.get(self._key)
        return written, _Record() if written is None else _Record.from_bytes(written)

    def _write(self, written: bytes | None, record: _Record) -> bool:
        return self._wire.board.swap(self._key, written, record.to_bytes())
