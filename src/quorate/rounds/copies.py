"""Who gets a copy of whose replica, as the leader sees it: members that miss more than the log still has, and workers
that join while others train. These are outside, until a round says that they step.

Who joins asks for a copy of a replica, which comes from a worker that steps; it is of one *stretch*, the rounds between
two in which all had settled, since what workers call together is counted from there. Then it asks to be let in: the
next round has it among those that have joined, on every worker, if it has all rounds before that one and its copy is of
the same stretch; otherwise it copies anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quorate.rounds.log import Log

AGAIN_SECONDS = 2.0
"""After which a copy that did not come is asked for again."""


class Copies:
    """Those under way, as their leader (`rank`) knows them."""

    def __init__(self, rank: int, host_of: Callable[[int], int] = lambda rank: 0) -> None:
        self._rank, self._host_of = rank, host_of
        self._until: dict[int, float] = {}
        self._sources: dict[int, int] = {}
        self._asked: dict[int, int] = {}

    def ended(self, to: int) -> None:
        """`to` has spoken since."""
        self._until.pop(to, None)

    def source_for(self, to: int, fit: Sequence[int], now: float) -> int | None:
        """Whose replica `to` copies, of those that miss nothing: the leader's, and when asked again another one's.

        Where there are several hosts, first those on the host of `to`, then the others from the next rank on, so that
        not every copy comes from the leader's host. None while a copy is on its way.
        """
        if self._until.get(to, now) > now:
            return None
        self._until[to] = now + AGAIN_SECONDS
        others = [self._rank, *(rank for rank in fit if rank not in (self._rank, to))]
        if len({self._host_of(rank) for rank in (*others, to)}) > 1:
            host, most = self._host_of(to), max(others) + 1
            others.sort(key=lambda rank: (self._host_of(rank) != host, (rank - to) % most))
        asked = self._asked[to] = self._asked.get(to, -1) + 1
        self._sources[to] = others[asked % len(others)]
        return self._sources[to]

    def have_died(self, ranks: Iterable[int]) -> list[int]:
        """These have died; who waits for a copy of one of them."""
        dead = set(ranks)
        left = [to for to, source in self._sources.items() if source in dead and to in self._until]
        for to in [*left, *dead]:
            self._until.pop(to, None)
            self._sources.pop(to, None)
        return [to for to in left if to not in dead]


class Entrance:
    """Those outside, of whom some are ready."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ready: set[int] = set()
        self._hastening: set[int] = set()
        """Those of them that ask for a round, as none comes."""

    def knocked(self, rank: int, header: dict[str, Any]) -> int | None:
        """`rank` asks to be let in, or for a copy: the newest round it has, as far as that counts (-1: none).

        None where it asks for neither.
        """
        note = header.get("note")
        if note == "enter" and header["stretch"] == self._log.stretch:
            self._ready.add(rank)
            if header.get("hastens"):
                self._hastening.add(rank)
            return int(header["logged"])  # also where it misses nothing: a new leader does not know that
        if note in ("enter", "copy"):
            self._ready.discard(rank)
            self._hastening.discard(rank)
            return -1
        return None

    def calls(self, has: Mapping[int, int]) -> bool:
        """Whether a round is to start so that somebody steps from then on; `has` says which round each has."""
        return any(has[rank] == self._log.newest for rank in self._hastening)

    def let_in(self, number: int, has: Mapping[int, int], *, settles: bool) -> tuple[int, ...]:
        """Who steps from round `number` on; `has` says which round each has."""
        if settles:
            self._ready.clear()
            self._hastening.clear()
        found = tuple(rank for rank in sorted(self._ready) if has[rank] == number - 1)
        self._ready.difference_update(found)
        self._hastening.difference_update(found)
        return found

    def have_died(self, ranks: set[int]) -> None:
        """They have died."""
        self._ready -= ranks
        self._hastening -= ranks
