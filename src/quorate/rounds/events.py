"""The events of a member, among them the words of its training thread; workers of a replica in pieces send them on.

An event happens to a member once; a word of the training thread is said to it. A `Note` is a word, too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from quorate.core.fields import Fields, Header
from quorate.core.vectors import Flat
from quorate.rounds.log import Jump
from quorate.rounds.member import Member
from quorate.rounds.messages import Lease, Note, Wish


class ThreadWord(Fields):
    """A word of the training thread to its member."""

    __slots__ = ()

    @abstractmethod
    def say(self, member: Member) -> None:
        """Say it to the member."""


@dataclass(frozen=True, slots=True)
class Word(ThreadWord):
    """A word of the training thread without fields of its own: `add` a gradient, `keep` or `restore` its rounds."""

    kind: Literal["add", "look", "keep", "restore", "close"]

    def header(self) -> dict[str, Any]:
        return {self.kind: True}

    def say(self, member: Member) -> None:
        if self.kind == "keep":
            member.keeping.keep(member.applied)
        elif self.kind == "restore":
            member.restore()


@dataclass(frozen=True, slots=True)
class Save(ThreadWord):
    """The request of the training thread for a checkpoint."""

    save: int

    def say(self, member: Member) -> None:
        member.keeping.wanted = max(member.keeping.wanted, self.save)
        member.ping()


@dataclass(frozen=True, slots=True)
class Jumped(ThreadWord):
    """The training thread has become a copy of another replica."""

    jump: Jump

    def header(self) -> dict[str, Any]:
        return {"jump": self.jump.header()}

    def say(self, member: Member) -> None:
        member.jump(self.jump)


@dataclass(frozen=True, slots=True)
class Wished(ThreadWord):
    """The training thread wishes for other settings of rounds."""

    wish: Wish

    def header(self) -> dict[str, Any]:
        return {"wish": self.wish.header()}

    def say(self, member: Member) -> None:
        member.wish = self.wish
        member.ping()


def read_word(header: Header) -> ThreadWord | Note:
    """Return the word of a header."""
    if "note" in header:
        return Note.read(header)
    if "jump" in header:
        return Jumped(Jump.read(header["jump"]))
    if "save" in header:
        return Save.read(header)
    if "wish" in header:
        return Wished(Wish.read(header["wish"]))
    kind: Any = next(iter(header))
    return Word(kind)


class Event(Fields):
    """An event of a member."""

    __slots__ = ()

    def header(self) -> dict[str, Any]:
        header = super().header()
        return {"what": header.pop("kind"), **header}

    @abstractmethod
    def happen(
        self, member: Member, now: float, vector: Flat | None = None, tensors: Sequence[Tensor] = ()
    ) -> int | None:
        """Let it happen to a member, with the vector or tensors of a message; return the term of a lease to take."""


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A message of another member, without its tensors."""

    kind: Literal["message"] = field(init=False, default="message")
    source: int
    message: Header  # open: the messages of members to each other

    def header(self) -> dict[str, Any]:
        return {"what": self.kind, "source": self.source, "header": self.message}

    def happen(
        self, member: Member, now: float, vector: Flat | None = None, tensors: Sequence[Tensor] = ()
    ) -> int | None:
        member.received(self.source, self.message, vector, now, tensors)
        return None

    @classmethod
    def read(cls, header: Header, **others: Any) -> Received:
        return cls(header["source"], header["header"])


@dataclass(frozen=True, slots=True)
class Passed(Event):
    """Time has passed."""

    kind: Literal["passed"] = field(init=False, default="passed")

    def happen(self, member: Member, now: float, *_: object) -> None:
        member.passed(now)


@dataclass(frozen=True, slots=True)
class Died(Event):
    """Workers have died."""

    kind: Literal["died"] = field(init=False, default="died")
    ranks: Sequence[int]

    def happen(self, member: Member, now: float, *_: object) -> None:
        member.have_died(self.ranks, now)


@dataclass(frozen=True, slots=True)
class LeaseRead(Event):
    """The member has read the lease on the board, to take it."""

    kind: Literal["lease"] = field(init=False, default="lease")
    held: Lease

    def header(self) -> dict[str, Any]:
        return {"what": self.kind, "held": self.held.header()}

    def happen(self, member: Member, now: float, *_: object) -> int | None:
        return member.term_to_take(self.held, now)

    @classmethod
    def read(cls, header: Header, **others: Any) -> LeaseRead:
        return cls(Lease.read(header["held"]))


@dataclass(frozen=True, slots=True)
class LeaseTaken(Event):
    """The member has written its lease on the board, and leads in `term`."""

    kind: Literal["stand"] = field(init=False, default="stand")
    term: int

    def happen(self, member: Member, now: float, *_: object) -> None:
        member.stand(self.term, now)


@dataclass(frozen=True, slots=True)
class Said(Event):
    """The training thread has said a word."""

    kind: Literal["said"] = field(init=False, default="said")
    word: ThreadWord | Note

    def header(self) -> dict[str, Any]:
        return {"what": self.kind, "said": self.word.header()}

    def happen(self, member: Member, now: float, *_: object) -> None:
        if isinstance(self.word, Note):
            member.note(self.word, now)
        else:
            self.word.say(member)

    @classmethod
    def read(cls, header: Header, **others: Any) -> Said:
        return cls(read_word(header["said"]))


_BY_KIND: dict[str, type[Event]] = {
    "message": Received,
    "passed": Passed,
    "died": Died,
    "lease": LeaseRead,
    "stand": LeaseTaken,
    "said": Said,
}


def read_event(header: Header) -> Event:
    """Return the event of a header."""
    return _BY_KIND[header["what"]].read(header)
