"""The writes of a replicated board that are in order, from the first that somebody may still lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quorate.wire.replicated.state import Write

Entry = tuple[int, Write]
"""The term in which it was put in order, and what it is."""


class WriteLog:
    """Entries are numbered from 1; those up to `base` have been dropped, since all have them."""

    def __init__(self) -> None:
        self.base, self._base_term = 0, 0
        self._entries: list[Entry] = []

    @property
    def last(self) -> int:
        """The number of the newest."""
        return self.base + len(self._entries)

    @property
    def place(self) -> tuple[int, int]:
        """Term and number of the newest: of two logs the one with the greater one has everything that is in force."""
        return self.term_of(self.last), self.last

    def term_of(self, number: int) -> int:
        """Of an entry from `base` on."""
        return self._base_term if number == self.base else self._entries[number - self.base - 1][0]

    def write_of(self, number: int) -> Write:
        """Of an entry behind `base`."""
        return self._entries[number - self.base - 1][1]

    def behind(self, number: int, most: int | None = None) -> list[Entry]:
        """The entries behind `number`, at most so many of them."""
        begin = number - self.base
        return self._entries[begin : None if most is None else begin + most]

    def add(self, term: int, write: Write) -> None:
        """The next one."""
        self._entries.append((term, write))

    def follows(self, number: int, term: int) -> bool:
        """Whether entry `number` is here, and of that term."""
        return number < self.base or (number <= self.last and self.term_of(number) == term)

    def merge(self, number: int, entries: Sequence[Any]) -> int:
        """Take in those behind entry `number`; what is here instead of one of them goes. The number of the last."""
        for place, (term, write) in enumerate(entries, number + 1):
            if place <= self.base:
                continue
            if place <= self.last and self.term_of(place) != term:
                del self._entries[place - self.base - 1 :]
            if place > self.last:
                self.add(int(term), write)
        return number + len(entries)

    def drop(self, number: int) -> None:
        """Forget those up to `number`."""
        if number > self.base:
            term = self.term_of(number)
            del self._entries[: number - self.base]
            self.base, self._base_term = number, term

    def begin(self, number: int, term: int) -> None:
        """There is nothing but what was applied up to entry `number`."""
        self.base, self._base_term, self._entries = number, term, []
