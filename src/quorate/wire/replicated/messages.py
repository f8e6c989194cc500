"""The messages between the copies of a replicated board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quorate.core.fields import Fields, Header
from quorate.wire.replicated.state import Entry, Write


@dataclass(frozen=True, slots=True)
class TakenForDead(Fields):
    """The answer to a worker that was taken for dead."""

    kind: Literal["gone"] = field(init=False, default="gone")


@dataclass(frozen=True, slots=True)
class Hello(Fields):
    """The request of a newcomer to receive the writes."""

    kind: Literal["hello"] = field(init=False, default="hello")
    address: str | None


@dataclass(frozen=True, slots=True)
class Proposal(Fields):
    """The request to the leader to order a write."""

    kind: Literal["propose"] = field(init=False, default="propose")
    write: Write

    def header(self) -> dict[str, Any]:
        return {"kind": self.kind, "write": self.write.header()}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Proposal:
        return cls(Write.read(header["write"]))


@dataclass(frozen=True, slots=True)
class ReadRequest(Fields):
    """The question to the leader after which entry the read `number` sees the newest values."""

    kind: Literal["read"] = field(init=False, default="read")
    number: int


@dataclass(frozen=True, slots=True)
class ReadIndex(Fields):
    """The answer to a `ReadRequest`: the entry."""

    kind: Literal["index"] = field(init=False, default="index")
    number: int
    index: int


@dataclass(frozen=True, slots=True)
class VoteRequest(Fields):
    """The request for a vote in `term`, or (`poll`) the question whether there would be one."""

    kind: Literal["poll", "vote"]
    term: int
    place: Sequence[int]  # see `WriteLog.place`


@dataclass(frozen=True, slots=True)
class Vote(Fields):
    """The answer to a `VoteRequest`."""

    kind: Literal["polled", "voted"]
    term: int
    yes: bool
    now_in: int  # the term of the voter


@dataclass(frozen=True, slots=True)
class FromLeader(Fields):
    """The fields of every message of the leader to a worker that follows; times are in seconds."""

    kind: str = field(init=False, default="")
    term: int
    stamp: float  # when it was sent, on the leader's clock
    applied: int
    age: float  # since the leader's last contact with a majority
    unheard: float  # since the leader has last heard this worker


@dataclass(frozen=True, slots=True)
class Append(FromLeader):
    """The entries behind entry `behind`."""

    kind: Literal["append"] = field(init=False, default="append")
    behind: int
    behind_term: int
    entries: Sequence[Entry]
    all_have: int

    def header(self) -> dict[str, Any]:
        header = Fields.header(self)
        header["entries"] = [(term, write.header()) for term, write in self.entries]
        return header

    @classmethod
    def read(cls, header: Header, **others: Any) -> Append:
        entries = [(term, Write.read(write)) for term, write in header["entries"]]
        return super(Append, cls).read({**header, "entries": entries})


@dataclass(frozen=True, slots=True)
class AppliedState(FromLeader):
    """The state after the entry `applied`, for a worker that lacks entries which the leader has dropped."""

    kind: Literal["whole"] = field(init=False, default="whole")
    state: dict[str, Any]  # open: see `BoardState.as_json`
    applied_term: int


@dataclass(frozen=True, slots=True)
class Acknowledgement(Fields):
    """The answer to a message of a leader."""

    kind: Literal["acked"] = field(init=False, default="acked")
    term: int
    yes: bool  # whether entry `number` is the newest here; otherwise entries behind it are lacking
    number: int
    stamp: float  # of the message
    applied: int


_BY_KIND: dict[str, type[Fields]] = {
    "gone": TakenForDead,
    "hello": Hello,
    "propose": Proposal,
    "read": ReadRequest,
    "index": ReadIndex,
    "poll": VoteRequest,
    "vote": VoteRequest,
    "polled": Vote,
    "voted": Vote,
    "append": Append,
    "whole": AppliedState,
    "acked": Acknowledgement,
}


def read(header: Header) -> Fields:
    """Return the message of a header."""
    return _BY_KIND[header["kind"]].read(header)
