"""Workers that join while others train, as their leader sees them: outside, until a round says that they step.

Who joins asks for a copy of a replica, which comes from a worker that steps; it is of one *stretch*, the rounds between
two in which all had settled, since what workers call together is counted from there. Then it asks to be let in: the
next round has it among those that have joined, on every worker, if it has all rounds before that one and its copy is of
the same stretch; otherwise it copies anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.rounds.log import Log


class Entrance:
    """Those outside, of whom some are ready."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ready: set[int] = set()

    def knocked(self, rank: int, header: dict[str, Any]) -> int | None:
        """`rank` asks to be let in, or for a copy: the newest round it has, as far as that counts (-1: none).

        None where it asks for neither.
        """
        note = header.get("note")
        if note == "enter" and header["stretch"] == self._log.stretch:
            self._ready.add(rank)
            return int(header["logged"])  # also where it misses nothing: a new leader does not know that
        if note in ("enter", "copy"):
            self._ready.discard(rank)
            return -1
        return None

    def let_in(self, number: int, has: Mapping[int, int], *, settles: bool) -> tuple[int, ...]:
        """Who steps from round `number` on; `has` says which round each has."""
        if settles:
            self._ready.clear()
        found = tuple(rank for rank in sorted(self._ready) if has[rank] == number - 1)
        self._ready.difference_update(found)
        return found

    def have_died(self, ranks: set[int]) -> None:
        """They have died."""
        self._ready -= ranks
