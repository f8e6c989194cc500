"""The messages between workers and servers; those between servers are declared in `succession`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from functools import cache
from typing import Any, Literal, Self

from quorate.core.fields import Fields, Header

_KEYS = {"era": "stretch", "workers": "there"}


@cache
def _keys_of(fields: type[Fields]) -> tuple[tuple[str, str, bool], ...]:
    """Return the name of each field, its key, and whether `__init__` takes it."""
    return tuple((x.name, _KEYS.get(x.name, x.name.replace("_", " ")), x.init) for x in fields_of(fields))  # type: ignore[arg-type]


class Keyed(Fields):
    """A part of a header whose keys have spaces, or are other words (`_KEYS`) than the names of its fields."""

    __slots__ = ()

    def header(self) -> dict[str, Any]:
        return {key: getattr(self, name) for name, key, _ in _keys_of(type(self))}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Self:
        return cls(**{name: header[key] for name, key, takes in _keys_of(cls) if takes and key in header}, **others)


@dataclass(frozen=True, slots=True)
class Signal(Keyed):
    """A message of a worker without fields of its own."""

    kind: Literal["comes", "pauses", "ended", "read", "has read"]
    era: int


@dataclass(frozen=True, slots=True)
class Attempt(Keyed):
    """The message of a newcomer that it joins, or withdraws."""

    kind: Literal["joins", "withdraws"]
    era: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Again(Keyed):
    """The question after push `number`, asked once more because servers are `dead`."""

    kind: Literal["again"] = field(init=False, default="again")
    era: int
    number: int
    dead: Sequence[int]


@dataclass(frozen=True, slots=True)
class PushMessage(Keyed):
    """A push; its tensors are, for each part on the server, those of the gradient, of the edit, and of the edit
    of rows."""

    kind: Literal["push"] = field(init=False, default="push")
    era: int
    draw: int  # number of the draw with which the gradient was encoded
    reads: bool
    count: int  # the steps in the gradient; 0 where there is none
    options: Sequence[dict[str, Any]]  # open: the options of each parameter group, by name
    number: int
    version: int  # version of the parameters at which the gradient was computed
    has_read: int  # the newest decision whose result the worker has read
    has_gradient: bool
    has_edit: bool
    unused: Sequence[Sequence[int]] = ()  # by part, the parameters without a gradient
    weight: float = 1.0  # the mean weight of these steps
    has_row_edit: bool = False


@dataclass(frozen=True, slots=True)
class PartFields(Keyed):
    """One part in the message of a worker that sends it, or in the answer of a server."""

    part: int
    numbers: int  # how many tensors of numbers it has
    states: Sequence[Any]  # open: the form of `states_to_plain`
    kept: int  # how many tensors of optimizer state it has
    options: Sequence[dict[str, Any]] | None = None  # open: by name; in the last answer of an era
    beside: Mapping[str, Any] | None = None  # open: the state of the optimizer outside parameters and options

    def header(self) -> dict[str, Any]:
        return {key: value for key, value in Keyed.header(self).items() if value is not None}


class WithParts(Keyed):
    """A part of a header that has parts."""

    __slots__ = ()
    parts: Sequence[PartFields]

    def header(self) -> dict[str, Any]:
        return super().header() | {"parts": [part.header() for part in self.parts]}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Self:
        return super().read({**header, "parts": [PartFields.read(part) for part in header["parts"]]}, **others)


@dataclass(frozen=True, slots=True)
class PartsMessage(WithParts):
    """The parts for a server without a worker of its own, at the start of an era."""

    kind: Literal["part"] = field(init=False, default="part")
    era: int
    layout: str  # the digest of the layout of the worker's replica
    centre: bool
    parts: Sequence[PartFields]
    call: Mapping[str, Any]  # open: the arguments of `distribute`, by name


FromWorker = Signal | Attempt | Again | PushMessage | PartsMessage
_CLASSES: dict[str, type[FromWorker]] = {
    "joins": Attempt,
    "withdraws": Attempt,
    "again": Again,
    "push": PushMessage,
    "part": PartsMessage,
}


def read_message(header: Header) -> FromWorker:
    """Return the fields of a message of a worker."""
    message: FromWorker = _CLASSES.get(header["kind"], Signal).read(header)
    return message


@dataclass(frozen=True, slots=True)
class Wanted(Fields):
    """The answer of a server to a worker that starts: whether the worker is to send the parts."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class Failed(Fields):
    """The message of a server that has ended with an error, in place of each answer."""

    failed: str


@dataclass(frozen=True, slots=True)
class AnswerFields(WithParts):
    """An answer with parameters; its tensors are the numbers of all parts, then their optimizer state."""

    index: int  # number of the decision
    version: int
    workers: Sequence[int]  # those of the next era, if this one ends
    parts: Sequence[PartFields]
    contributors: int
    is_whole: bool  # whether the parameters are full, not differences
    number: int = 0  # the question; see `Decision.readers`
    staleness: int | None = None  # of the reader's gradient, if it is in the step
    clock: int | None = None  # for newcomers: where they begin


@dataclass(frozen=True, slots=True)
class Invitation(Keyed):
    """The message with which a newcomer begins to join."""

    era: int
