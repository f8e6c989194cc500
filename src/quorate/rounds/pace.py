"""How a worker's training thread waits for rounds, and when it applies them: the newest, whenever it looks."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from quorate.core.contracts import Wire, Work
from quorate.core.errors import WireTimeout
from quorate.rounds.copies import Copy
from quorate.rounds.entering import copies_wanted
from quorate.rounds.events import Word
from quorate.rounds.log import Round
from quorate.rounds.messages import Note
from quorate.rounds.progress import NEWS, RoundTask

_LOOK_SECONDS = 5.0


class OtherRounds(Protocol):
    """The rounds of the other optimizers of this worker."""

    seconds: float
    """Seconds that this worker waits before it reports them, and between two calls of `serve` from then on."""

    def wait(self) -> None:
        """This worker waits elsewhere: they start without it."""

    def serve(self) -> None:
        """Give copies of replicas to those that need one."""

    def go_on(self) -> None:
        """This worker goes on, after `wait`."""


class Arrival:
    """The training thread's view of news; `serve` is called when another worker needs a copy of this replica."""

    def __init__(self, wire: Wire, progress: RoundTask, serve: Callable[[], None]) -> None:
        self._wire, self._progress, self._serve = wire, progress, serve
        self._news = wire.receive(wire.rank, NEWS)
        self.others: OtherRounds | None = None

    def is_there(self, number: int) -> bool:
        member = self._progress.member
        return member.log.newest >= number or member.copy is not None

    def until(self, number: int, timeout: float | None = None, *, is_called_for: bool = True) -> None:
        """Return when round `number` is there, or a copy of a replica. Raises as `Work.wait`. A round that was not
        called for, only known to have started, may be void under another leader: then this returns as well."""
        member, progress = self._progress.member, self._progress
        limit = self._wire.timeout if timeout is None else timeout
        clock = self._wire.clock
        begin, term = clock.now(), member.term
        others, has_told = self.others, False
        progress.is_waiting = True
        try:
            is_watched = member.leads == member.rank
            if not is_watched and not progress.notes_at_once and not self.is_there(number):
                progress.say(Word("look"))  # it watches the leader from now on
                is_watched = True
            while not self.is_there(number) and (is_called_for or member.term == term):
                progress.check()
                if member.copies_wanted or member.entries_wanted:
                    self._serve()
                waited = clock.now() - begin
                if others is not None and has_told:
                    others.serve()
                elif others is not None and waited >= others.seconds:
                    has_told = True
                    others.wait()
                left = limit - waited
                look = _LOOK_SECONDS if others is None else others.seconds
                patience = math.inf if is_watched else member.patience.seconds
                try:
                    self.next_news(min(left, look, patience))
                except WireTimeout:
                    if left <= min(look, patience):
                        raise WireTimeout(
                            f"rank {self._wire.rank} waited {limit:g} s for round {number}; round {member.log.newest} "
                            f"is the newest, and rank {member.leads} leads"
                        ) from None
                    if not is_watched:  # a round that comes sooner wakes the task beside this thread only once
                        progress.say(Word("look"))
                        is_watched = True
        finally:
            progress.is_waiting = False
            if others is not None and has_told:
                others.go_on()

    def expect(self, is_so: Callable[[], bool]) -> None:
        """Return when `is_so()`, which news may change."""
        while not is_so():
            self._progress.check()
            self.next_news()

    def next_news(self, timeout: float | None = None) -> None:
        """Return when there is news. Raises as `Work.wait`."""
        self._news.wait(timeout)
        self._news = self._wire.receive(self._wire.rank, NEWS)

    def drain(self) -> None:
        while self._news.done():
            self.next_news()

    def goes_on(self) -> None:
        """Say that the worker computes again: the round it had called for may be void."""
        self._progress.say(Note("ride", self._progress.applied))


class Wait:
    """The work of a contribution: done when the round that was called for is there, or those that had started."""

    def __init__(self, arrival: Arrival, number: int, *, is_called_for: bool = True) -> None:
        self._arrival, self.number, self.is_called_for = arrival, number, is_called_for

    def done(self) -> bool:
        return self._arrival.is_there(self.number)

    def wait(self, timeout: float | None = None) -> int:
        self._arrival.until(self.number, timeout, is_called_for=self.is_called_for)
        if not self.done():
            self._arrival.goes_on()
        return self.number


_: type[Work[int]] = Wait


@dataclass(frozen=True)
class Copied:
    """A copy of another worker's replica."""

    source: int
    copy: Copy


Give = Callable[[int, bool], None]
"""Sends a worker a copy of this replica, full for a newcomer."""


class Called(Work[int], Protocol):
    """The work of a round that is waited for; `wait` returns its number."""

    number: int
    is_called_for: bool


class Pace(Protocol):
    """Decides what the training thread of one worker applies."""

    def call(self, slack: float | None, *, waits: bool) -> Called:
        """Call for a round, if none has started since the previous step returned; `slack` is as of `Rounds.hand_in`."""

    @property
    def started(self) -> int:
        """The newest round that is known to have started."""

    def next(self, up_to: float = math.inf) -> Round | Copied | None:
        """Return what to apply now: a round (none beyond `up_to`), or a copy; None: nothing more in this look."""

    def applied(self, number: int) -> None:
        """Note that the replica has applied that round."""

    follows: bool
    """Whether another worker decides."""

    @property
    def is_outside(self) -> bool:
        """Whether this worker has not joined yet."""

    def wait_for_news(self, seconds: float) -> None:
        """Return when there is news, or after so many seconds."""

    def until(self, number: int, *, is_called_for: bool = True) -> None:
        """Wait until round `number` is there, or a copy; see `Arrival.until`."""

    def serve(self) -> None:
        """Send copies of this replica to the workers that need one."""


class OwnPace:
    """The pace of a replica of one worker; `era()` is the start of a newcomer's copy (-1: it has none)."""

    def __init__(
        self, progress: RoundTask, arrival: Arrival, era: Callable[[], int], is_pause: Callable[[], bool], give: Give
    ) -> None:
        self.follows = False
        self._progress, self._member, self._arrival = progress, progress.member, arrival
        self._era, self._is_pausing, self._give = era, is_pause, give
        self._applied = progress.applied

    def call(self, slack: float | None, *, waits: bool) -> Wait:
        started, applied = self._member.started, self._applied
        if started > applied:
            self._progress.say(Note("ride", started if waits else applied))
            return Wait(self._arrival, started, is_called_for=False)
        computing = None if waits else applied
        self._progress.say(Note("call", computing, started, slack))
        return Wait(self._arrival, started + 1)

    @property
    def started(self) -> int:
        return self._member.started

    def next(self, up_to: float = math.inf) -> Round | Copied | None:
        if (copied := self._copied()) is not None:
            return copied
        completed = self._member.log.get(self._applied + 1)
        if completed is not None and completed.number <= up_to:
            return completed
        self._arrival.drain()
        self.serve()
        return None

    def _copied(self) -> Copied | None:
        member = self._member
        if member.copy is None:
            return None
        source, copy = member.copy
        member.copy, state = None, copy.jump.state
        if copy.is_whole:
            is_known = not member.is_outside or (state.era, state.number) <= (self._era(), self._applied)
        else:
            is_known = (state.number, state.log_term) == (self._applied, member.log.term_of(self._applied))
        return None if is_known else Copied(source, copy)

    @property
    def is_outside(self) -> bool:
        return self._member.is_outside

    def wait_for_news(self, seconds: float) -> None:
        with suppress(WireTimeout):
            self._arrival.next_news(seconds)

    def applied(self, number: int) -> None:
        self._progress.applied = self._applied = number

    def until(self, number: int, *, is_called_for: bool = True) -> None:
        self._arrival.until(number, is_called_for=is_called_for)

    def serve(self) -> None:
        member = self._member
        if member.copies_wanted or member.entries_wanted:
            for to, is_whole in copies_wanted(member, is_pause=self._is_pausing()):
                self._give(to, is_whole)
