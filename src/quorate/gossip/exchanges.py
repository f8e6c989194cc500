"""An exchange with neighbours: among whom it is, what each of them sends, what has come, and how long is waited."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import PeerFailed, WireTimeout
from quorate.core.neighbours import Gift, Given, MassLedger, UnderWay
from quorate.core.vectors import Flat
from quorate.observe.step_times import StepTimer

WRITTEN = "written"
"""In the header of a message whose tensors a codec has made."""


def given_as(gift: Gift, weight: float, scalars: Sequence[float], round: int, source: int = -1) -> Given:
    """`gift` as those that get it read it."""
    x, is_written = (gift, False) if isinstance(gift, Flat) else (gift.x, True)
    return Given(x, weight, tuple(scalars), round, source, is_written)


def message_of(gift: Gift, header: Mapping[str, Any]) -> Message:
    """What travels for it."""
    if isinstance(gift, Flat):
        return Message(gift.parts, dict(header), shared=True)
    return Message(tuple(gift.tensors), {**header, WRITTEN: True}, shared=True)


class StartedExchange:
    """One exchange under way."""

    def __init__(
        self,
        rank: int,
        own: Given | None,
        sent: Mapping[int, Flat],
        others: Mapping[int, Incoming],
        round: int,
        timer: StepTimer,
    ) -> None:
        self._waiting, self._round, self._timer, self.own, self.sent = dict(others), round, timer, own, sent
        self._found: dict[int, Given] = {} if own is None else {rank: own}

    def done(self) -> bool:
        return all(other.has(self._round) for other in self._waiting.values())

    def wait(self, timeout: float | None = None) -> dict[int, Given]:
        return self._all(timeout, lambda other, left: other.given(self._round, left))

    def within(self, seconds: float | None) -> dict[int, Given]:
        return (
            self.wait()
            if seconds is None
            else self._all(seconds, lambda other, left: other.within(self._round, left or 0.0))
        )

    def _all(self, timeout: float | None, of: Callable[[Incoming, float | None], Given | None]) -> dict[int, Given]:
        self._timer.arrived()
        clock = self._timer.clock
        until = None if timeout is None else clock.now() + timeout
        with self._timer.spending("wait"):
            for peer in list(self._waiting):
                left = None if until is None else max(0.0, until - clock.now())
                given = of(self._waiting[peer], left)
                del self._waiting[peer]
                if given is not None:
                    self._found[peer] = given
        self._timer.contributors = max(1, len(self._found))
        return self._found


_: type[UnderWay] = StartedExchange


TAG = "exchange"
_FAR_AHEAD = 8
"""Rounds from which on somebody is so far ahead that what it gives is taken in at once, lest it pile up."""


class Incoming:
    """What `source` sends to this worker: its rounds in order, and word of when it goes away.

    Messages are asked for one at a time, so that none is asked for that may never come.
    """

    def __init__(self, wire: Wire, source: int, read: Callable[[int, Message], Flat], ledger: MassLedger) -> None:
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
        about = header["round"], self._source, WRITTEN in header
        given = Given(self._read(self._source, message), header["weight"], scalars, *about)
        self._told += given.mass
        self.ledger.got[self._source] += given.mass
        self._held[given.round] = given


@dataclass
class _Loss:
    dead: frozenset[int]
    said: int = -1
    """The newest exchange that this worker has said to begin before it."""
    begins: int | None = None
    """The first one without the dead."""


class Members:
    """Among which workers of `wire` the graph of an exchange lies when some have died: the same on all; nobody waits.

    Each writes on the board, before an exchange, which one it is about to begin without the newly dead being left out
    of the graph. When all that are left have said so for the same dead, these are left out from the exchange after the
    last of those: whoever finds that says it in the same word, by compare-and-set, so nobody has begun that one before.

    Cost: nothing while all live. After a death one or two words with the board for each exchange, until all have said
    theirs: as many exchanges as a worker makes meanwhile.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._losses: list[_Loss] = []

    def of(self, number: int) -> tuple[int, ...]:
        """Those of exchange `number`, in order of rank. Called for it by every worker that begins it, before it does.

        Numbers never fall.
        """
        gone = self._wire.dead.intersection(range(self._wire.size))  # who came later was never in the graph
        if gone and all(loss.dead != gone for loss in self._losses):
            self._losses.append(_Loss(gone))
        for loss in self._losses:
            if loss.begins is None and number > loss.said:
                self._say(loss, number)
        begun = [loss for loss in self._losses if loss.begins is not None and loss.begins <= number]
        if not begun:
            return tuple(range(self._wire.size))
        newest = max(begun, key=lambda loss: len(loss.dead))
        self._losses = [loss for loss in self._losses if loss.dead >= newest.dead]
        return self._without(newest.dead)

    def _without(self, dead: Collection[int]) -> tuple[int, ...]:
        return tuple(rank for rank in range(self._wire.size) if rank not in dead)

    def _say(self, loss: _Loss, number: int) -> None:
        board, key = self._wire.board, f"{self._wire.name}/without/{','.join(map(str, sorted(loss.dead)))}"
        while True:
            written = board.get(key)
            what = {"said": {}, "begins": None} if written is None else json.loads(written)
            if what["begins"] is not None:
                loss.begins = int(what["begins"])
                return
            what["said"][str(self._wire.rank)] = number
            if len(what["said"]) == self._wire.size - len(loss.dead):
                what["begins"] = 1 + max(what["said"].values())
            if board.swap(key, written, json.dumps(what).encode()):
                loss.said, loss.begins = number, what["begins"]
                return
