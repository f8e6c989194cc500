"""Replicas for others, and how one that joins comes by its own: what the training threads do."""

from __future__ import annotations

from quorate.core.contracts import Wire
from quorate.core.errors import Stopped, WireTimeout
from quorate.core.telling import tell
from quorate.rounds.member import Member
from quorate.rounds.progress import RoundTask
from quorate.rounds.replica import Replica

KNOCK_SECONDS = 0.5
"""After which one that joins asks again, as the leader may be another one by then."""


def _over(wire: Wire) -> str:
    return f"{wire.name}/over"


def say_over(wire: Wire) -> None:
    """All have ended: nobody joins any more."""
    if wire.max_size > wire.size:
        wire.board.set(_over(wire), b"1")


def leave_if_over(wire: Wire) -> None:
    """Raise `Stopped`, for one that has come too late to join those of `wire`."""
    if wire.board.get(_over(wire)) is not None:
        tell("quorate: the training ended before this worker could join it\n")
        raise Stopped(0)


def give_copies(member: Member, progress: RoundTask, replica: Replica, *, settles: bool) -> None:
    """Answer those that were told to copy this replica.

    Those that join are not answered while this worker `settles`: where they begin would be neither before nor after.
    """
    while member.copies_wanted:
        _give(member.copies_wanted.pop(), member, progress, replica, is_whole=False)
    while member.entries_wanted and not settles:
        _give(member.entries_wanted.pop(), member, progress, replica, is_whole=True)


def _give(rank: int, member: Member, progress: RoundTask, replica: Replica, *, is_whole: bool) -> None:
    copied, tensors = replica.capture(is_whole=is_whole)
    header = {**member.about_copy(), "term": member.term, "leads": member.leads, "logged": member.log.newest}
    progress.carry(rank, {**header, "replica": copied, "is_whole": is_whole}, tensors)


class Knocking:
    """Of one that joins: it asks for a copy of a replica, then to be let in, until a round says that it steps."""

    def __init__(self, member: Member, progress: RoundTask, wire: Wire) -> None:
        self._member, self._progress, self._wire = member, progress, wire
        self._until = wire.clock.now() + wire.timeout

    def knock(self, stretch: int) -> None:
        """Its newest copy is of that stretch (-1: there is none); it is worth nothing where all have settled since."""
        if stretch == self._member.log.stretch:
            self._progress.say({"note": "enter", "stretch": stretch, "computing": self._member.applied})
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
