"""The events of a member, among them the words of its training thread; workers of a replica in pieces send them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from quorate.core.fields import Fields, Header
from quorate.core.vectors import Flat
from quorate.rounds.log import Jump
from quorate.rounds.member import Member
from quorate.rounds.messages import Lease, Note, Wish


@dataclass(frozen=True, slots=True)
class Word(Fields):
    """A word of the training thread without fields of its own: `add` a gradient, `keep` or `restore` its rounds."""

    kind: Literal["add", "look", "keep", "restore", "close"]

    def header(self) -> dict[str, Any]:
        return {self.kind: True}


@dataclass(frozen=True, slots=True)
class Save(Fields):
    """The request of the training thread for a checkpoint."""

    save: int


@dataclass(frozen=True, slots=True)
class Jumped(Fields):
    """The training thread has become a copy of another replica."""

    jump: Jump

    def header(self) -> dict[str, Any]:
        return {"jump": self.jump.header()}


@dataclass(frozen=True, slots=True)
class Wished(Fields):
    """The training thread wishes for other settings of rounds."""

    wish: Wish

    def header(self) -> dict[str, Any]:
        return {"wish": self.wish.header()}


def read_word(header: Header) -> Fields:
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


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A message of another member, without its tensors."""

    kind: Literal["message"] = field(init=False, default="message")
    source: int
    message: Header  # open: the messages of members to each other

    def header(self) -> dict[str, Any]:
        return {"what": self.kind, "source": self.source, "header": self.message}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Received:
        return cls(header["source"], header["header"])


@dataclass(frozen=True, slots=True)
class Passed(Event):
    """Time has passed."""

    kind: Literal["passed"] = field(init=False, default="passed")


@dataclass(frozen=True, slots=True)
class Died(Event):
    """Workers have died."""

    kind: Literal["died"] = field(init=False, default="died")
    ranks: Sequence[int]


@dataclass(frozen=True, slots=True)
class LeaseRead(Event):
    """The member has read the lease on the board, to take it."""

    kind: Literal["lease"] = field(init=False, default="lease")
    held: Lease

    def header(self) -> dict[str, Any]:
        return {"what": self.kind, "held": self.held.header()}

    @classmethod
    def read(cls, header: Header, **others: Any) -> LeaseRead:
        return cls(Lease.read(header["held"]))


@dataclass(frozen=True, slots=True)
class LeaseTaken(Event):
    """The member has written its lease on the board, and leads in `term`."""

    kind: Literal["stand"] = field(init=False, default="stand")
    term: int


@dataclass(frozen=True, slots=True)
class Said(Event):
    """The training thread has said a word."""

    kind: Literal["said"] = field(init=False, default="said")
    word: Fields

    def header(self) -> dict[str, Any]:
        return {"what": self.kind, "said": self.word.header()}

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


def happen(
    member: Member, event: Event, now: float, vector: Flat | None = None, tensors: Sequence[Tensor] = ()
) -> int | None:
    """Let an event happen to a member, with the vector or tensors of a message; return the term of a lease to take."""
    if isinstance(event, Received):
        member.received(event.source, event.message, vector, now, tensors)
    elif isinstance(event, Passed):
        member.passed(now)
    elif isinstance(event, Said):
        _take_word(member, event.word, now)
    elif isinstance(event, Died):
        member.have_died(event.ranks, now)
    elif isinstance(event, LeaseRead):
        return member.term_to_take(event.held, now)
    elif isinstance(event, LeaseTaken):
        member.stand(event.term, now)
    return None


def _take_word(member: Member, word: Fields, now: float) -> None:
    if isinstance(word, Note):
        member.note(word, now)
    elif isinstance(word, Jumped):
        member.jump(word.jump)
    elif isinstance(word, Save):
        member.keeping.wanted = max(member.keeping.wanted, word.save)
        member.ping()
    elif isinstance(word, Wished):
        member.wish = word.wish
        member.ping()
    elif isinstance(word, Word) and word.kind == "keep":
        member.keeping.keep(member.applied)
    elif isinstance(word, Word) and word.kind == "restore":
        member.restore()
