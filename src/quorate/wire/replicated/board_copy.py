"""A worker's copy of a replicated board: the writes in order, the resulting values, and its own pending writes.

`WriteLog` keeps the ordered writes from the first that another worker may still lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quorate.core.fields import Fields
from quorate.wire.replicated.limits import Limits
from quorate.wire.replicated.state import NOTHING, BoardState, Entry, Write

Send = Callable[[int, Fields], None]


class BoardCopy:
    """The copy of one worker at time `now`: `applied` writes are in `state`, and `log` may hold more."""

    def __init__(
        self,
        rank: int,
        size: int,
        limits: Limits,
        send: Send,
        now: float,
        values: Mapping[str, bytes],
        when_applied: Callable[[Write, Any], None],
        when_read: Callable[[int], None],
    ) -> None:
        self.rank, self.limits, self.now = rank, limits, now
        self.state, self.log = BoardState(size, values), WriteLog()
        self.applied = self.term = 0
        self.stopped: str | None = None
        self.closed: dict[int, float] = {}
        """Times at which the connections of others to this worker were closed."""
        self.tell, self._when_applied, self._when_read = send, when_applied, when_read
        self.proposed: dict[int, tuple[Write, float]] = {}
        """Its own writes that are not committed, and when they were last sent."""
        self.reads: dict[int, float] = {}
        """Its own reads, and when they were last requested."""
        self._readable: dict[int, int] = {}

    def is_closed(self, peer: int | None) -> bool:
        """Whether the connection of `peer` to this worker is closed, and has not been opened again."""
        since = None if peer is None else self.closed.get(peer)
        return since is not None and self.now - since >= self.limits.back_within

    def electors(self) -> list[frozenset[int]]:
        """Return the sets of voters whose majorities an election needs: now, and after writes that may be committed."""
        return self.state.voters_after(write for _, write in self.log.behind(self.applied))

    def apply_up_to(self, number: int) -> None:
        """Apply the entries up to `number`, which are committed."""
        while self.applied < number:
            write = self.log.write_of(self.applied + 1)
            result = None
            is_first = write.do != NOTHING and not self.state.has_applied(write)
            if is_first:
                result = self.state.apply(write)
            self.applied += 1
            if is_first:
                self._when_applied(write, result)
            if write.by == self.rank:
                self.proposed.pop(write.number, None)
        self.refresh()

    def refresh(self) -> None:
        """Update proposals, reads and `stopped` to the committed state."""
        if self.rank in self.state.members.dead and self.stopped is None:
            self.stopped = self.taken_for_dead()
        for number, (write, _) in list(self.proposed.items()):
            if self.state.has_applied(write):
                del self.proposed[number]
        self.tell_readers()

    def tell_readers(self) -> None:
        """Call `when_read` for every read that can be answered now."""
        for number in [number for number, index in self._readable.items() if index <= self.applied]:
            self.give_up(number)
            self._when_read(number)

    def readable(self, numbers: Iterable[int], index: int) -> None:
        """Let the state after entry `index` answer these reads."""
        self._readable.update(dict.fromkeys(numbers, index))
        self.tell_readers()

    def give_up(self, number: int) -> None:
        """Forget a read that is no longer waited for."""
        self.reads.pop(number, None)
        self._readable.pop(number, None)

    def taken_for_dead(self) -> str:
        """Return the reason to stop, in words."""
        return (
            f"rank {self.rank} was taken for dead, as it was not heard for {self.limits.silence:g} s, and the others "
            "have gone on without it"
        )


class WriteLog:
    """The ordered writes, numbered from 1; those up to `base` are dropped, since all workers have them."""

    def __init__(self) -> None:
        self.base, self._base_term = 0, 0
        self._entries: list[Entry] = []

    @property
    def last(self) -> int:
        """The number of the newest entry."""
        return self.base + len(self._entries)

    @property
    def place(self) -> tuple[int, int]:
        """Term and number of the newest entry: of two logs the one with the greater place has all committed writes."""
        return self.term_of(self.last), self.last

    def term_of(self, number: int) -> int:
        """Return the term of an entry from `base` on."""
        return self._base_term if number == self.base else self._entries[number - self.base - 1][0]

    def write_of(self, number: int) -> Write:
        """Return the write of an entry behind `base`."""
        return self._entries[number - self.base - 1][1]

    def behind(self, number: int, most: int | None = None) -> list[Entry]:
        """Return the entries behind `number`, at most `most` of them."""
        begin = number - self.base
        return self._entries[begin : None if most is None else begin + most]

    def add(self, term: int, write: Write) -> None:
        """Append an entry."""
        self._entries.append((term, write))

    def follows(self, number: int, term: int) -> bool:
        """Whether entry `number` is here, and of this `term`."""
        return number < self.base or (number <= self.last and self.term_of(number) == term)

    def merge(self, number: int, entries: Sequence[Entry]) -> int:
        """Put `entries` behind entry `number`, in place of different ones; return the number of the last."""
        for place, (term, write) in enumerate(entries, number + 1):
            if place <= self.base:
                continue
            if place <= self.last and self.term_of(place) != term:
                del self._entries[place - self.base - 1 :]
            if place > self.last:
                self.add(term, write)
        return number + len(entries)

    def drop(self, number: int) -> None:
        """Drop the entries up to `number`."""
        if number > self.base:
            term = self.term_of(number)
            del self._entries[: number - self.base]
            self.base, self._base_term = number, term

    def begin(self, number: int, term: int) -> None:
        """Drop all entries, after a state in which those up to `number` are applied."""
        self.base, self._base_term, self._entries = number, term, []
