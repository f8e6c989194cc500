"""When a worker's training thread takes what comes of rounds: the newest there is, at each of its looks."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from quorate.core.contracts import Work
from quorate.core.errors import WireTimeout
from quorate.rounds.arrival import Arrival, Wait
from quorate.rounds.entering import copies_wanted
from quorate.rounds.log import Round
from quorate.rounds.progress import RoundTask


@dataclass(frozen=True)
class Copied:
    """A copy of another worker's replica."""

    source: int
    header: dict[str, Any]


Give = Callable[[int, bool], None]
"""Gives a worker a copy of this replica, which is whole for one that joins."""


class Called(Work[int], Protocol):
    """A round that is waited for; `wait` returns its number."""

    number: int
    is_called_for: bool


class Pace(Protocol):
    """Decides for the training thread of one worker."""

    @property
    def version(self) -> int:
        """The newest round that was applied."""

    def call(self, about: dict[str, Any], *, waits: bool) -> Called:
        """Call for a round, if none has started since the previous step returned; what to wait for."""

    @property
    def started(self) -> int:
        """The newest round that is known to have started."""

    def next(self, up_to: float = math.inf) -> Round | Copied | None:
        """What is to be applied now: a round (none beyond `up_to`), or a copy. None: nothing more in this look."""

    def applied(self, number: int) -> None:
        """The replica is as after that round."""

    follows: bool
    """Whether another worker decides."""

    @property
    def is_outside(self) -> bool:
        """Whether this worker has not joined yet."""

    def wait_for_news(self, seconds: float) -> None:
        """Return when something has come, or after so long."""

    def until(self, number: int, *, is_called_for: bool = True) -> None:
        """As `Arrival.until`."""

    def serve(self) -> None:
        """Give copies of this replica to those that need one."""


class OwnPace:
    """As it goes: what is there is taken. `stretch` says of one that joins where its copy is from (-1: there is none);
    `settles` whether this worker settles, `give` gives a copy."""

    def __init__(
        self,
        progress: RoundTask,
        arrival: Arrival,
        stretch: Callable[[], int],
        settles: Callable[[], bool],
        give: Give,
    ) -> None:
        self.follows = False
        self._progress, self._member, self._arrival = progress, progress.member, arrival
        self._stretch, self._settles, self._give = stretch, settles, give
        self.about_to_give: Give = lambda to, is_whole: None

    @property
    def version(self) -> int:
        return self._progress.applied

    def call(self, about: dict[str, Any], *, waits: bool) -> Wait:
        started = self._member.started
        if started > self.version:
            self._progress.say({"note": "ride", "computing": started if waits else self.version})
            return Wait(self._arrival, started, is_called_for=False)
        computing = None if waits else self.version
        self._progress.say({"note": "call", "since": started, "computing": computing, **about})
        return Wait(self._arrival, started + 1)

    @property
    def started(self) -> int:
        return self._member.started

    def next(self, up_to: float = math.inf) -> Round | Copied | None:
        if (copied := self._copied()) is not None:
            return copied
        one = self._member.log.get(self.version + 1)
        if one is not None and one.number <= up_to:
            return one
        self._arrival.drain()
        self.serve()
        return None

    def _copied(self) -> Copied | None:
        member = self._member
        if member.copy is None:
            return None
        source, header, _ = member.copy
        member.copy = None
        if header["is_whole"]:
            at = header["stretch"], header["number"]
            is_known = not member.is_outside or at <= (self._stretch(), self.version)
        else:
            at = header["number"], header["log_term"]
            is_known = at == (self.version, member.log.term_of(self.version))
        return None if is_known else Copied(source, header)

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
            self.about_to_give(to, is_whole)
            self._give(to, is_whole)
