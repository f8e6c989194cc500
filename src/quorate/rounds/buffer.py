"""What a worker holds for rounds: `pending.PendingGradients`, or `fragments.PendingFragments`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quorate.core.vectors import Flat, nbytes_of
from quorate.rounds.coding import Given
from quorate.rounds.ledger import Ledger
from quorate.rounds.terms import Agreed


@dataclass
class Entry:
    """Contributions computed on the parameters of one round, added up in float32 (or the parameters' wider type)."""

    version: int
    weight: float
    vector: Flat
    count: int = 1
    measures: list[Any] = field(default_factory=list)
    """What was told with them, in order."""


@dataclass
class Snapshot:
    """What one worker gives to one round; kept until the round after it is there."""

    number: int
    entries: list[Entry]
    step: float
    """The place in the training that `options` are for, in synchronous steps."""
    options: Any
    """The optimizer's numbers with the newest contribution."""
    vector: Flat | None = None
    """The sum, each entry by what its staleness counts; None where there is nothing."""
    coded: dict[int, Given] = field(default_factory=dict)
    """What a codec has made of it, by fragment; of gradients it is 0."""
    weight: float = 0.0
    """Likewise."""
    lost: float = 0.0
    """What has become too old, or was replaced, since the last one."""
    times: int = 0
    """How often the worker had handed in by then."""

    @property
    def stalenesses(self) -> list[tuple[int, int]]:
        """(staleness, number of contributions), the freshest last."""
        return [(self.number - 1 - entry.version, entry.count) for entry in self.entries]

    @property
    def code(self) -> Flat | None:
        """The vector as its codec has written it, where it has, and codes are of one length."""
        return next(iter(self.coded.values())).code if len(self.coded) == 1 else None

    @property
    def header(self) -> dict[str, Any]:
        """All but the vectors, as JSON. `sizes`: the bytes of the code, and of the vector."""
        code, vector = self.code, self.vector
        return {
            "number": self.number,
            "weight": self.weight,
            "used_up": self.lost + sum(entry.weight for entry in self.entries),
            "step": self.step,
            "options": self.options,
            "stalenesses": self.stalenesses,
            "measures": [word for entry in self.entries for word in entry.measures],
            "times": self.times,
            "sizes": None if code is None or vector is None else [nbytes_of(code), nbytes_of(vector)],
        }


@dataclass(kw_only=True)
class Kept:
    """What a checkpoint holds of one worker, as it is after it has applied round `number`."""

    number: int
    step: float
    """The place in the training that `options` are for, in synchronous steps."""
    options: Any
    """The optimizer's numbers with this worker's newest contribution."""
    ledger: Ledger
    entries: list[Entry]
    """What this worker has contributed and no round up to `number` has taken in."""
    error: Flat | None = None
    """What a codec has left out of what was given to rounds up to `number`, and comes with the next one."""
    best_step: float = 0.0
    """The furthest such place in the rounds up to `number`, of anyone."""
    best_options: Any = None
    """The optimizer's numbers there."""
    progress: float = 0.0
    """Synchronous steps made up to there."""
    settings: dict[str, Any] = field(default_factory=dict)
    """In force after that round, as far as not agreed at the start."""
    request: int = -1
    """The newest request for other settings that was answered; -1: none."""


class Buffer(Protocol):
    """What a worker has produced, and no round has taken in for good. Whoever shares it between threads locks."""

    agreed: Agreed
    ledger: Ledger
    step: float
    options: Any
    times: int
    """How often the worker has handed in."""

    def take(self, number: int, *, settles: bool = False) -> Snapshot:
        """All that round `number` may have; what is too old for it is counted and gone."""

    def give_back(self, snapshot: Snapshot) -> None:
        """The round went by without it: it waits again."""

    def lose(self, weight: float) -> None:
        """So much was taken by a round that came to nothing, and is not kept any more."""

    def taken_from_mate(self, number: int, *, settles: bool) -> None:
        """Round `number` has what another worker of the same learner has handed in."""

    def kept(self, snapshots: Mapping[int, Snapshot], number: int) -> Kept:
        """What rounds up to `number` have not taken in."""

    def restore(self, kept: Kept) -> None:
        """Go on from there."""
