"""The settings of rounds, and what is said in them: `Agreed`, and the words of the protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from quorate.core.errors import ConfigurationError, unknown

if TYPE_CHECKING:
    from quorate.rounds.combining import Combine

_LARGE = 1 << 16
"""Bytes from which carrying a vector may take longer than answering."""

PASSED_ON = 1 << 30
"""In the place of an attempt: the sum comes from the log of another worker."""

CHANGEABLE = ("wait_for", "max_staleness")
"""What may change from one round to the next: what only the one that decides when rounds start goes by."""

WaitFor = int | float | Literal["all", "majority", "designated"]


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What the workers of one optimizer have agreed about their rounds; the same on all."""

    size: int
    max_size: int = 0
    """How many workers there may ever be (0: as many as now): those that join have the ranks from `size` on."""
    wait_for: WaitFor = "majority"
    late: Literal["carry", "drop", "replace"] = "carry"
    late_weight: Literal["full", "falling", "gated"] = "full"
    """What is late counts as much as any; 1 / (1 + staleness); or by a cosine gate: see `weight_of`."""
    late_cutoff: float = 16.0
    late_alpha: float = 0.1
    max_staleness: int = 16
    divide_by: Literal["world", "arrived"] = "world"
    grace: float = 0.050
    """Seconds in which a worker answers, or is waited for by nobody."""
    vector_bytes: int = 0
    """Of one gradient: what carrying it takes is not silence. Of the first worker's piece, where there are pieces."""
    pieces: int = 1
    """Over how many workers each replica is spread; the ranks of rounds are replicas then."""
    patience: float = 10.0
    """Seconds of silence after which a worker is not counted among those that step."""
    log_bytes: int = 256 << 20
    """What results that were applied may take in memory."""
    seed: int = 0
    fragments: int = 0
    """In how many parts vectors come to rounds, one after the other; 0: each is whole."""
    window: float = 0.0
    """Seconds at most that a round waits for more workers than have to call: see `rounds.calls`."""
    tolerates_death: bool = False
    """Whether the others go on when a worker dies; else it is everyone's end."""
    combine: Combine | None = None
    """What becomes of the vectors of a round; None: their sum."""
    learners: tuple[int, ...] = ()
    """Which learner each worker is of, by rank; empty where each is one of its own. `wait_for` counts learners."""

    @property
    def ranks(self) -> range:
        """All that there may ever be."""
        return range(max(self.size, self.max_size))

    @property
    def callers(self) -> int:
        """How many may call for a round where all live: workers, or learners."""
        return len(set(self.learners)) if self.learners else self.size

    @property
    def quorum(self) -> int:
        """How many of them have to call where all live."""
        return self.quorum_of(self.callers)

    def quorum_of(self, size: int) -> int:
        """How many have to call where `size` are left."""
        wanted = self.wait_for
        if wanted == "all":
            return size
        if wanted == "designated":
            return 1
        if wanted == "majority":
            return size // 2 + 1
        assert isinstance(wanted, int | float)
        return wanted if isinstance(wanted, int) else math.ceil(Fraction(repr(wanted)) * size)  # 0.28 of 25 is 7

    @property
    def is_large(self) -> bool:
        """Whether a worker says that it is there before it gives, and that it has a result: see `Carrying`."""
        return self.vector_bytes >= _LARGE

    @property
    def log_rounds(self) -> int:
        """How many results that were applied are kept at most, for workers that are behind."""
        return max(2 * self.max_staleness, 8) if not self.fragments else max(8 * self.fragments, 64)

    def weight_of(self, staleness: int) -> float:
        """What a contribution of that staleness counts."""
        if self.late_weight == "gated":
            gate = (1 + math.cos(math.pi * staleness / self.late_cutoff)) / 2 if staleness < self.late_cutoff else 0.0
            return gate * math.exp(-self.late_alpha * staleness)
        return 1.0 if self.late_weight == "full" else 1.0 / (1 + staleness)


def amended(agreed: Agreed, settings: Mapping[str, Any]) -> Agreed:
    """`agreed` at the start, with the `settings` that are in force by now."""
    return replace(agreed, **settings) if settings else agreed


def check_change(agreed: Agreed, settings: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for a change that cannot be, of what was agreed at the start."""
    for name in settings:
        if name not in CHANGEABLE:
            raise unknown("setting of rounds that changes", name, CHANGEABLE)
    new = amended(agreed, settings)
    check(new)
    if new.max_staleness > agreed.max_staleness:
        raise ConfigurationError(
            f"max_staleness is {new.max_staleness}; it changes between 0 and what it was at the start, "
            f"{agreed.max_staleness}"
        )


def check(agreed: Agreed) -> None:
    """Raise `ConfigurationError` for settings that no quorum can have."""
    wanted, size = agreed.wait_for, agreed.callers
    noun = "learners" if agreed.learners else "replicas" if agreed.pieces > 1 else "workers"
    known = '"all", "majority", "designated", a count, or a fraction between 0 and 1'
    if isinstance(wanted, str):
        if wanted not in ("all", "majority", "designated"):
            raise ConfigurationError(f'wait_for="{wanted}" is unknown; it must be {known}')
    elif isinstance(wanted, bool) or (isinstance(wanted, float) and not 0 < wanted < 1):
        raise ConfigurationError(f"wait_for is {wanted!r}; it must be {known}")
    elif isinstance(wanted, int) and not 1 <= wanted <= size:
        raise ConfigurationError(f"wait_for is {wanted}, and there are {size} {noun}; it must be from 1 to {size}")
    if agreed.max_staleness < 0:
        raise ConfigurationError(f"max_staleness is {agreed.max_staleness}; it must be a number of rounds (at least 0)")
    if not 0 <= agreed.window < math.inf:
        raise ConfigurationError(f"window is {agreed.window!r}; it must be a number of seconds (at least 0)")
    for name in ("grace", "patience"):
        if not 0 < getattr(agreed, name) < math.inf:
            raise ConfigurationError(f"{name} is {getattr(agreed, name)!r}; it must be a number of seconds above 0")
