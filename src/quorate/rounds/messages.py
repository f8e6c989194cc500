"""The messages of members to their leader; others are declared beside their senders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quorate.core.fields import Fields, Header


@dataclass(frozen=True, slots=True)
class Lease(Fields):
    """The right to lead, on the board."""

    term: int = 0
    leads: int = 0


@dataclass(frozen=True, slots=True)
class Wish(Fields):
    """A worker's request, made after round `request`, for other settings of rounds."""

    request: int
    settings: dict[str, Any]  # open: by name, see `terms.CHANGEABLE`
    why: str


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that every message of a member has."""

    term: int
    leads: int
    logged: int  # the newest round in the sender's log, which was formed in the term `log_term`
    log_term: int
    wants: int = 0  # the newest request of the sender's worker for a checkpoint
    wishes: Wish | None = None

    def header(self, message: Header) -> dict[str, Any]:
        wishes = None if self.wishes is None else self.wishes.header()
        own = {"term": self.term, "leads": self.leads, "logged": self.logged, "wants": self.wants, "wishes": wishes}
        return {"log_term": self.log_term, **message, **own}

    @classmethod
    def read(cls, header: Header) -> Envelope:
        wishes = None if (wish := header.get("wishes")) is None else Wish.read(wish)
        logged, log_term = header["logged"], header["log_term"]
        return cls(header["term"], header["leads"], logged, log_term, header.get("wants", 0), wishes)


_OF_NOTES = {
    "call": ("since", "computing", "slack"),
    "ride": ("computing",),
    "back": ("computing",),
    "enter": ("era", "computing", "hastens"),
}


@dataclass(frozen=True, slots=True)
class Note(Fields):
    """The activity of a worker: its training thread tells its member, and the member whoever leads."""

    note: Literal["call", "ride", "wait", "away", "back", "pause", "end", "copy", "enter"]
    computing: int | None = None  # the round whose parameters it computes on; None while it waits
    since: int = 0  # in a call: the newest round it knows to have started
    slack: float | None = None  # in a call: the seconds it can go on without the result
    era: int = 0  # for newcomers: the round of the pause before their copy
    hastens: bool = False  # for newcomers: whether they ask for a round, as none comes

    def header(self) -> dict[str, Any]:
        header: dict[str, Any] = {"note": self.note}
        for name in _OF_NOTES.get(self.note, ()):
            header[name] = getattr(self, name)
        return header


@dataclass(frozen=True, slots=True)
class State(Fields):
    """The answer of a member to a new leader."""

    started: int
    did: Note
    held: Sequence[int] | None  # see `Held.about`

    def header(self) -> dict[str, Any]:
        return {"kind": "state", "started": self.started, "did": self.did.header(), "held": self.held}

    @classmethod
    def read(cls, header: Header, **others: Any) -> State:
        return cls(header["started"], Note.read(header["did"]), header["held"])


@dataclass(frozen=True, slots=True)
class Signal(Fields):
    """A message without fields of its own."""

    kind: Literal["ping", "pong", "look", "there", "again", "behind", "term", "stand"]


@dataclass(frozen=True, slots=True)
class RoundSignal(Fields):
    """A message with the number of a round: `here` and `got` go to the leader, `hold` and `force` come from it."""

    kind: Literal["here", "got", "hold", "force"]
    number: int


@dataclass(frozen=True, slots=True)
class Whole(Fields):
    """The message to the leader that the head of a host has all contributions of the host."""

    kind: Literal["whole"] = field(init=False, default="whole")
    number: int
    attempt: int
