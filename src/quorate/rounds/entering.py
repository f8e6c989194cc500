"""Replicas for others, and how one that joins comes by its own: what the training threads do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import Stopped, WireTimeout
from quorate.core.telling import tell
from quorate.records.tape import Look, Position
from quorate.rounds.member import Member
from quorate.rounds.progress import RoundTask

KNOCK_SECONDS = 0.5
"""After which one that joins asks again, as the leader may be another one by then."""


class Watching(Protocol):
    """Who is told what `records.tape` goes by."""

    def looked(self, look: Look, number: int, source: int | None = None) -> None:
        """A worker has applied rounds up to `number`, or has become a copy of `source` as of that one."""

    def gave(self, at: Position, to: int) -> None:
        """It has given `to`, which joins, a copy of its replica as that was then."""


class NobodyWatches:
    """Tells nobody."""

    def looked(self, look: Look, number: int, source: int | None = None) -> None:
        """See `Watching`."""

    def gave(self, at: Position, to: int) -> None:
        """See `Watching`."""


class Replica(Protocol):
    """What rounds need of their replica: to copy it onto another one, and to keep it in a checkpoint."""

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]:
        """Parameters and optimizer, as JSON and tensors; nothing of it changes afterwards. With `is_whole` all that one
        that joins needs: the rest of the model, and where it is in the data."""

    def adopt(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Become what was captured."""

    def reached(self, number: int, term: int, *, in_step: bool) -> bool:
        """Round `number`, which is to be kept, is applied. False: it is kept later (`Rounds.keep`), as this is inside
        a step, and no further round may be applied before."""

    def met(self, number: int, joined: Sequence[int]) -> None:
        """In round `number` all have settled, with those that have `joined` by then: what all workers call together
        from here on, these call as well."""

    def boundary(self) -> None:
        """What is to be kept is kept now."""


def _over(wire: Wire) -> str:
    return f"{wire.name}/over"


def say_over(wire: Wire) -> None:
    """All have ended: nobody joins any more."""
    if wire.max_size > wire.size:
        wire.board.set(_over(wire), b"1")


def leave_if_over(wire: Wire) -> None:
    """Raise `Stopped`, for one that has come too late to join those of `wire`."""
    if wire.board.get(_over(wire)) is not None:
        tell("quorate: the training ended before this worker could join\n")
        raise Stopped(0)


def copies_wanted(member: Member, *, settles: bool) -> Iterator[tuple[int, bool]]:
    """Those that were told to copy this replica, and whether the copy is for one that joins.

    Those that join are not answered while this worker `settles`: where they begin would be neither before nor after.
    """
    while member.copies_wanted:
        yield member.copies_wanted.pop(), False
    while member.entries_wanted and not settles:
        yield member.entries_wanted.pop(), True


def give_copy(rank: int, number: int, member: Member, progress: RoundTask, replica: Replica, *, is_whole: bool) -> None:
    """To `rank`, of this replica as it is after round `number`."""
    copied, tensors = replica.capture(is_whole=is_whole)
    header = {**member.about_copy(number), "leads": member.leads, "logged": member.log.newest}
    progress.carry(rank, {**header, "replica": copied, "is_whole": is_whole}, tensors)


class Knocking:
    """Of one that joins: it asks for a copy of a replica, then to be let in, until a round says that it steps."""

    def __init__(self, member: Member, progress: RoundTask, wire: Wire, *, may_hasten: bool = False) -> None:
        """`may_hasten`: ask for a round of its own where none lets it in for a while."""
        self._member, self._progress, self._wire, self._may_hasten = member, progress, wire, may_hasten
        self._until, self._ready_since = wire.clock.now() + wire.timeout, math.inf

    def knock(self, stretch: int) -> None:
        """Its newest copy is of that stretch (-1: there is none); it is worth nothing where all have settled since."""
        if stretch == self._member.log.stretch:
            now = self._wire.clock.now()
            self._ready_since = min(self._ready_since, now)
            hastens = self._may_hasten and now - self._ready_since >= KNOCK_SECONDS
            about = {"stretch": stretch, "computing": self._progress.applied, "hastens": hastens}
            self._progress.say({"note": "enter", **about})
        else:
            self._progress.say({"note": "copy"})

    def check(self) -> None:
        """Raise `Stopped` where the training has ended before, and `WireTimeout`."""
        if not self._member.is_outside:
            return
        leave_if_over(self._wire)
        if self._wire.clock.now() > self._until:
            raise WireTimeout(
                f"rank {self._wire.rank} waited {self._wire.timeout:g} s to join; rank {self._member.leads} leads"
            )
