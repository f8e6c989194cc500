"""Copies of replicas for other workers, and how a newcomer gets its own: the training threads' side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import Stopped, WireTimeout
from quorate.core.telling import tell
from quorate.records.tape import Look, Position
from quorate.rounds.copies import Copy
from quorate.rounds.member import Member
from quorate.rounds.messages import Note
from quorate.rounds.progress import RoundTask

KNOCK_SECONDS = 0.5  # seconds after which a newcomer asks again, as another worker may lead by then


class Watching(Protocol):
    """Receives what `records.tape` needs."""

    def looked(self, look: Look, number: int, source: int | None = None) -> None:
        """Note that a worker has applied rounds up to `number`, or became a copy of `source` after that round."""

    def gave(self, at: Position, to: int) -> None:
        """Note that the newcomer `to` was sent a copy of the replica, as it was at `at`."""


class Replica(Protocol):
    """A replica that can be copied to another worker, and kept in a checkpoint."""

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]:
        """Parameters and optimizer, as JSON and tensors; nothing of it changes afterwards. With `is_whole` all that one
        that joins needs: the rest of the model, and where it is in the data."""

    def adopt(self, header: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Become the replica that was captured."""

    def reached(self, number: int, term: int, *, in_step: bool) -> bool:
        """Round `number`, which is to be kept, is applied. False: it is kept later (`Rounds.keep`), as this is inside
        a step, and no further round may be applied before."""

    def met(self, number: int, joined: Sequence[int]) -> None:
        """Round `number` is a pause of all, with those that have `joined` by then: what all workers call together
        from here on, these call as well."""

    def boundary(self) -> None:
        """Write what is due for a checkpoint now."""


def _over(wire: Wire) -> str:
    return f"{wire.name}/over"


def say_over(wire: Wire) -> None:
    """Write on the board that the training has ended: nobody joins any more."""
    if wire.max_size > wire.size:
        wire.board.set(_over(wire), b"1")


def leave_if_over(wire: Wire) -> None:
    """Raise `Stopped` in a newcomer, where the training of `wire` has ended."""
    if wire.board.get(_over(wire)) is not None:
        tell("quorate: the training ended before this worker could join\n")
        raise Stopped(0)


def copies_wanted(member: Member, *, is_pause: bool) -> Iterator[tuple[int, bool]]:
    """Yield the workers that wait for a copy of this replica, and whether each is a newcomer. Newcomers wait while this
    round `is_pause`: their start would be neither before the pause nor after it."""
    while member.copies_wanted:
        yield member.copies_wanted.pop(), False
    while member.entries_wanted and not is_pause:
        yield member.entries_wanted.pop(), True


def give_copy(rank: int, number: int, member: Member, progress: RoundTask, replica: Replica, *, is_whole: bool) -> None:
    """Send `rank` a copy of this replica, as it is after round `number`."""
    copied, tensors = replica.capture(is_whole=is_whole)
    copy = Copy(member.about_copy(number), member.leads, member.log.newest, copied, is_whole)
    progress.carry(rank, copy.header(), tensors)


class Knocking:
    """The requests of a newcomer: for a copy of a replica, then to be let in, until a round says that it steps."""

    def __init__(self, member: Member, progress: RoundTask, wire: Wire, *, may_hasten: bool = False) -> None:
        """`may_hasten`: ask for a round of its own where none lets it in for a while."""
        self._member, self._progress, self._wire, self._may_hasten = member, progress, wire, may_hasten
        self._until, self._ready_since = wire.clock.now() + wire.timeout, math.inf

    def knock(self, era: int) -> None:
        """Ask again; `era` is that of the newest copy (-1: none), which is stale after another pause."""
        if era == self._member.log.era:
            now = self._wire.clock.now()
            self._ready_since = min(self._ready_since, now)
            hastens = self._may_hasten and now - self._ready_since >= KNOCK_SECONDS
            note = Note("enter", self._progress.applied, era=era, hastens=hastens)
            self._progress.say(note)
        else:
            self._progress.say(Note("copy"))

    def check(self) -> None:
        if not self._member.is_outside:
            return
        leave_if_over(self._wire)
        if self._wire.clock.now() > self._until:
            raise WireTimeout(
                f"rank {self._wire.rank} waited {self._wire.timeout:g} s to join; rank {self._member.leads} leads"
            )
