"""When a worker's training thread applies rounds: the newest there are, whenever it looks."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from quorate.core.contracts import Work
from quorate.core.errors import WireTimeout
from quorate.rounds.arrival import Arrival, Wait
from quorate.rounds.copies import Copy
from quorate.rounds.entering import copies_wanted
from quorate.rounds.log import Round
from quorate.rounds.messages import Note
from quorate.rounds.progress import RoundTask


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

    @property
    def version(self) -> int:
        """The newest round that was applied."""

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
    """The pace of a replica of one worker; `stretch()` is the start of a newcomer's copy (-1: it has none)."""

    def __init__(
        self, progress: RoundTask, arrival: Arrival, stretch: Callable[[], int], settles: Callable[[], bool], give: Give
    ) -> None:
        self.follows = False
        self._progress, self._member, self._arrival = progress, progress.member, arrival
        self._stretch, self._settles, self._give = stretch, settles, give

    @property
    def version(self) -> int:
        return self._progress.applied

    def call(self, slack: float | None, *, waits: bool) -> Wait:
        started = self._member.started
        if started > self.version:
            self._progress.say(Note("ride", started if waits else self.version).header())
            return Wait(self._arrival, started, is_called_for=False)
        computing = None if waits else self.version
        self._progress.say(Note("call", computing, started, slack).header())
        return Wait(self._arrival, started + 1)

    @property
    def started(self) -> int:
        return self._member.started

    def next(self, up_to: float = math.inf) -> Round | Copied | None:
        if (copied := self._copied()) is not None:
            return copied
        completed = self._member.log.get(self.version + 1)
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
            is_known = not member.is_outside or (state.stretch, state.number) <= (self._stretch(), self.version)
        else:
            is_known = (state.number, state.log_term) == (self.version, member.log.term_of(self.version))
        return None if is_known else Copied(source, copy)

    @property
    def is_outside(self) -> bool:
        return self._member.is_outside

    def wait_for_news(self, seconds: float) -> None:
        with suppress(WireTimeout):
            self._arrival.next_news(seconds)

    def applied(self, number: int) -> None:
        self._progress.applied = number

    def until(self, number: int, *, is_called_for: bool = True) -> None:
        self._arrival.until(number, is_called_for=is_called_for)

    def serve(self) -> None:
        for to, is_whole in copies_wanted(self._member, settles=self._settles()):
            self._give(to, is_whole)
