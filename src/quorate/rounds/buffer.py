"""The contributions of a worker that wait for a round: the data of `pending` and of `fragments`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quorate.core.fields import Fields, Header
from quorate.core.vectors import Flat, nbytes_of
from quorate.rounds.coding import Encoded
from quorate.rounds.terms import Agreed


@dataclass
class Ledger:
    """Weights of contributions, by their fate."""

    produced: float = 0.0
    taken: float = 0.0
    dropped: float = 0.0
    replaced: float = 0.0
    expired: float = 0.0

    @property
    def lost(self) -> float:
        """The weight that no round has taken and none will."""
        return self.dropped + self.replaced + self.expired


@dataclass
class Entry:
    """Contributions computed on the parameters of one round, added up in float32 (or the parameters' wider type)."""

    version: int
    weight: float
    vector: Flat
    count: int = 1
    measures: list[Any] = field(default_factory=list)
    is_lent: Callable[[], bool] | None = None  # returns whether the numbers of its vector are seen elsewhere
    is_kept: bool = False  # whether it was sent, or is in a checkpoint: then nobody writes to its vector
    is_joined: bool = False  # whether its numbers are in the vector of the entry before it


@dataclass
class Snapshot:
    """The contribution of one worker to one round; kept until the round after it is there."""

    number: int
    entries: list[Entry]
    step: float
    options: Any
    vector: Flat | None = None  # the sum of the entries, weighted by staleness; None where there are none
    coded: dict[int, Encoded] = field(default_factory=dict)  # the encoded forms, by fragment; gradients are fragment 0
    weight: float = 0.0
    lost: float = 0.0  # the weight that expired or was replaced since the previous snapshot
    times: int = 0

    @property
    def stalenesses(self) -> list[tuple[int, int]]:
        """Pairs of staleness and number of contributions, the freshest last."""
        return [(self.number - 1 - entry.version, entry.count) for entry in self.entries]

    @property
    def code(self) -> Flat | None:
        """The encoded vector; None where there is none, or codes differ in length."""
        return next(iter(self.coded.values())).code if len(self.coded) == 1 else None

    @property
    def contribution(self) -> Contribution:
        code, vector = self.code, self.vector
        used_up = self.lost + sum([entry.weight for entry in self.entries])
        measures = [word for entry in self.entries for word in entry.measures]
        sizes = None if code is None or vector is None else [nbytes_of(code), nbytes_of(vector)]
        about = self.step, self.options, self.stalenesses, measures, self.times, sizes
        return Contribution(self.number, self.weight, used_up, *about, vector)


@dataclass(frozen=True, slots=True)
class Contribution(Fields):
    """The contribution of one worker to a round; see `Snapshot`."""

    number: int
    weight: float
    used_up: float  # the weight in it, and the weight lost since the previous one
    step: float
    options: Any
    stalenesses: list[tuple[int, int]]
    measures: list[Any]
    times: int
    sizes: Sequence[int] | None  # the bytes of its code, and of the vector; None where there is no code
    vector: Flat | None  # None: there is none, or the worker keeps it for its host

    @property
    def gives(self) -> bool:
        """Whether there is a vector, here or with the worker."""
        return bool(self.stalenesses)

    def header(self) -> dict[str, Any]:
        header: dict[str, Any] = {}
        for name in self.__match_args__[:-1]:
            header[name] = getattr(self, name)
        return header

    @classmethod
    def read(cls, header: Header, **others: Any) -> Contribution:
        stalenesses = [(staleness, count) for staleness, count in header["stalenesses"]]
        return super(Contribution, cls).read({**header, "stalenesses": stalenesses}, **others)


@dataclass(frozen=True, slots=True)
class Give:
    """The message of a contribution to the leader."""

    is_pause: bool
    contribution: Contribution

    def header(self) -> dict[str, Any]:
        return {"kind": "give", "is_pause": self.is_pause, **self.contribution.header()}


@dataclass(kw_only=True)
class Kept:
    """The state of one worker for a checkpoint, after it has applied round `number`."""

    number: int
    step: float
    options: Any
    ledger: Ledger
    entries: list[Entry]
    error: Flat | None = None  # the error of the codec after round `number`, which joins the next contribution
    best_step: float = 0.0
    best_options: Any = None
    progress: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)  # in force after that round, if not from the start
    request: int = -1


class Buffer(Protocol):
    """The contributions of a worker that no round has taken for good. A buffer that threads share needs a lock."""

    agreed: Agreed
    ledger: Ledger
    step: float
    options: Any
    times: int

    def take(self, number: int, *, is_pause: bool = False) -> Snapshot:
        """Return all that round `number` may have; count what is too old for it as expired."""

    def give_back(self, snapshot: Snapshot) -> None:
        """Let `snapshot` wait again: its round took nothing of it."""

    def lose(self, weight: float) -> None:
        """Count `weight` as expired: a void round had taken it."""

    def taken_from_learner(self, number: int, *, is_pause: bool) -> None:
        """Note that round `number` has the contribution of another worker of the same learner."""

    def kept(self, snapshots: Mapping[int, Snapshot], number: int) -> Kept:
        """Return the state for a checkpoint after round `number`."""

    def restore(self, kept: Kept) -> None:
        """Continue from `kept`."""
