"""Admission of newcomers to strategies whose steps wait for nobody: the board admits them between two pauses.

A record on the board lists those that have joined. A newcomer first gets a copy of a replica, and then adds itself to
the record. The first worker that pauses closes the record, so all that pause together agree on its list. The first that
steps after a pause opens it again, unless a worker has ended. A newcomer that finds the record closed, or of a later
era than its copy, waits for another copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quorate.core.contracts import Wire
from quorate.core.fields import Fields
from quorate.means.admission import waiting


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
