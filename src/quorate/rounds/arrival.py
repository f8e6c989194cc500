"""How a training thread waits for rounds: for news of the task beside it, until a round is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quorate.core.contracts import Wire, Work
from quorate.core.errors import WireTimeout
from quorate.rounds.messages import Note
from quorate.rounds.progress import NEWS, RoundTask

_LOOK_SECONDS = 5.0


class OtherRounds(Protocol):
    """The rounds of the other optimizers of this worker."""

    seconds: float
    """Seconds that this worker waits before they are told, and between two calls of `serve` from then on."""

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
            if member.leads != member.rank and not self.is_there(number):
                progress.say({"look": True})  # it watches the leader from now on
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
                try:
                    self.next_news(min(left, look))
                except WireTimeout:
                    if left <= look:
                        raise WireTimeout(
                            f"rank {self._wire.rank} waited {limit:g} s for round {number}; round {member.log.newest} "
                            f"is the newest, and rank {member.leads} leads"
                        ) from None
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
        self._progress.say(Note("ride", self._progress.applied).header())


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
