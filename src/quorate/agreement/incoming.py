"""What one other worker sends to this one in exchanges: its rounds in order, and word of when it goes away."""

from __future__ import annotations

from collections.abc import Callable

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import PeerFailed, WireTimeout
from quorate.core.neighbours import Given, MassLedger
from quorate.core.vectors import Flat

TAG = "exchange"
_FAR_AHEAD = 8
"""Rounds from which on somebody is so far ahead that what it gives is taken in at once, lest it pile up."""


class Incoming:
    """The messages of `source`, asked for one at a time, so that none is asked for that may never come."""

    def __init__(self, wire: Wire, source: int, read: Callable[[Message], Flat], ledger: MassLedger) -> None:
        self._wire, self._source, self._read, self.ledger = wire, source, read, ledger
        self._asked: Work[tuple[int, Message]] | None = None
        self._held: dict[int, Given] = {}
        self._given_up: set[int] = set()
        self._taken_early: set[int] = set()
        self._is_silent = False
        self._told = 0.0
        """The masses that it says it has given, up to its newest message."""
        self.is_away = self.has_ended = self.is_dead = False
        self.reached = -1
        """The newest exchange it had begun when it went away."""

    def has(self, round: int) -> bool:
        """Whether what it gives in `round` is there, or never comes. Never waits."""
        while not self._is_settled(round):
            if not self._ask().done():
                return False
            self._take()
        return True

    def given(self, round: int, timeout: float | None = None) -> Given | None:
        """What it gives in `round`; None where it takes no part in that. Raises as `Work.wait`."""
        while not self._is_settled(round):
            self._take(timeout)
        return self._held.pop(round, None)

    def within(self, round: int, seconds: float) -> Given | None:
        """As `given`, and None where it has not given after so many seconds, or was silent for so long before."""
        try:
            return self.given(round, 0.0 if self._is_silent and not self.has(round) else seconds)
        except WireTimeout:
            self._is_silent = True
            self._given_up.add(round)
            return None

    def late(self, round: int) -> list[Given]:
        """What has come of rounds that were given up, and of those far ahead of `round`; never waits."""
        self.look()
        early = {other for other in self._held if other > round + _FAR_AHEAD}
        self._taken_early = {other for other in self._taken_early if other >= round} | early
        found = [self._held.pop(other) for other in sorted(self._held.keys() & (self._given_up | early))]
        newest = max((given.round for given in found), default=-1)
        self._given_up = {other for other in self._given_up if other > newest}
        return found

    def look(self) -> bool:
        """Whether it is known to be away by now, or dead."""
        while not self.is_away and self._ask().done():
            self._take()
        return self.is_away

    def rest_of_it(self, *, ended: bool) -> list[Given]:
        """Wait until it is away (or has ended); what it gave in rounds that this worker has not taken in."""
        while not (self.has_ended or (self.is_away and not ended)):
            self.is_away = False
            self._take()
        late = [self._held[round] for round in sorted(self._held)]
        self._held.clear()
        self._given_up.clear()
        self._taken_early.clear()
        self._told = 0.0
        return late

    def comes_back(self) -> None:
        """All have rested: it takes part again, unless it has ended."""
        self.is_away = self.has_ended

    def _is_settled(self, round: int) -> bool:
        return (
            round in self._held
            or self.is_away
            or round in self._taken_early
            or any(other > round for other in self._held)
        )

    def _ask(self) -> Work[tuple[int, Message]]:
        if self._asked is None:
            self._asked = self._wire.receive(self._source, TAG)
        return self._asked

    def _take(self, timeout: float | None = None) -> None:
        try:
            _, message = self._ask().wait(timeout)
        except PeerFailed:
            if self._source not in self._wire.dead:
                raise
            self.is_away = self.has_ended = self.is_dead = True
            return
        self._asked, header = None, message.header
        self._is_silent = False
        if header["before"] != self._told:  # what was between did not come
            self.ledger.lost[self._source] += header["before"] - self._told
        self._told = header["before"]
        if "away" in header:
            self._told = 0.0  # with the rest, a new ledger is begun
            self.is_away, self.has_ended, self.reached = True, header["away"] == "ended", header["round"]
            return
        scalars = tuple(header["scalars"])
        given = Given(self._read(message), header["weight"], scalars, header["round"], self._source)
        self._told += given.mass
        self.ledger.got[self._source] += given.mass
        self._held[given.round] = given
