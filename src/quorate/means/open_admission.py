"""Workers that join where no step brings all together: between two rests anybody may, by a word on the board.

Who trains stands in one record there. One that joins has a copy of a replica first, and then writes itself into the
record, which the first worker that comes to a rest closes: so all that rest together agree on who that is. Who steps
after a rest opens it again, unless somebody has ended. One that finds it closed, or of a later stretch than its copy,
waits for another copy.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from quorate.core.contracts import Wire
from quorate.means.admission import waiting


@dataclass(frozen=True)
class _Record:
    """Who has joined, in which stretch between two rests (from 0), and whether anybody still may."""

    stretch: int = 0
    is_open: bool = True
    joined: tuple[int, ...] = ()


class OpenAdmission:
    """That of one optimizer's worker. Cost, where anybody may join: two words with the board in every step of one of
    them."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._key = wire, f"{wire.name}/members"
        self.stretch = 0
        """Rests so far."""
        self._asked: set[tuple[int, int]] = set()

    @property
    def is_possible(self) -> bool:
        """Whether anybody may join at all."""
        return self._wire.max_size > self._wire.size

    def waiting(self) -> list[int]:
        """Who is to be given a copy of this worker's replica, once in a stretch each; a step has ended, and nobody."""
        self._open()
        found = [(rank, self.stretch) for rank in waiting(self._wire.board, self._wire.name)]
        new = [one for one in found if one not in self._asked and one[0] not in self._read()[1].joined]
        self._asked.update(new)
        return [rank for rank, _ in new]

    def close(self) -> tuple[int, ...]:
        """This worker rests, or has ended: nobody joins until all go on. Who has joined by now."""
        while True:
            written, record = self._read()
            closed = _Record(self.stretch, is_open=False, joined=record.joined)
            if record == closed or self._write(written, closed):
                self.stretch += 1
                return closed.joined

    def enter(self, stretch: int) -> tuple[int, ...] | None:
        """This worker has a copy of that stretch: who has joined, it included, or None where that is over."""
        while True:
            written, record = self._read()
            if not record.is_open or record.stretch != stretch:
                return None
            mine = replace(record, joined=(*record.joined, self._wire.rank))
            if self._write(written, mine):
                self.stretch = stretch
                return mine.joined

    def _open(self) -> None:
        written, record = self._read()
        if record.stretch < self.stretch:
            self._write(written, _Record(self.stretch, is_open=True, joined=record.joined))

    def _read(self) -> tuple[bytes | None, _Record]:
        written = self._wire.board.get(self._key)
        if written is None:
            return None, _Record()
        found = json.loads(written)
        return written, _Record(**{**found, "joined": tuple(found["joined"])})

    def _write(self, written: bytes | None, record: _Record) -> bool:
        return self._wire.board.swap(self._key, written, json.dumps(asdict(record)).encode())
