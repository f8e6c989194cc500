"""The settings of rounds (`Agreed`), and the words of the protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from quorate.core.errors import ConfigurationError, unknown

if TYPE_CHECKING:
    from quorate.rounds.combining import Combine

_LARGE = 1 << 16  # bytes from which carrying a vector may take longer than answering
_RELEASED = 1 << 20  # bytes from which memory is worth a look at every start of a round

_MANY = 16  # workers

PASSED_ON = 1 << 30
"""The number of the attempt of a sum that comes from the log of another worker."""

CHANGEABLE = ("wait_for", "max_staleness")
"""The settings that may change from one round to the next: those that only the leader needs."""

WaitFor = int | float | Literal["all", "majority", "designated"]


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """The settings of the rounds of one optimizer; the same on all workers."""

    size: int
    max_size: int = 0  # the most workers there may ever be (0: as many as now); newcomers have the ranks from `size` on
    wait_for: WaitFor = "majority"
    late: Literal["carry", "drop", "replace"] = "carry"
    late_weight: Literal["full", "falling", "root", "gated"] = "full"
    """Late contributions count in full; by 1 / (1 + staleness) or its square root; or by a cosine gate: see
    `weight_of`."""
    late_cutoff: float = 16.0
    late_alpha: float = 0.1
    max_staleness: int = 16
    divide_by: Literal["world", "arrived"] = "world"
    grace: float = 0.050  # seconds in which a worker answers, or is waited for by nobody
    vector_bytes: int = 0  # the bytes of a gradient (of the first piece of one), as the time to carry it is no silence
    pieces: int = 1  # the number of workers of each replica; the ranks of rounds are replicas
    patience: float = 10.0  # seconds of silence after which a worker is not counted among those that step
    sum_threads: int = 0  # threads of each process that add vectors; 0: the cores it may use over workers of its host
    log_bytes: int = 256 << 20  # the memory for results that were applied
    seed: int = 0
    fragments: int = 0  # the number of fragments of a vector, one for each round in turn; 0: vectors are not cut
    window: float = 0.0  # the most seconds that a round waits for more workers than it needs: see `rounds.calls`
    tolerates_death: bool = False  # whether the others continue when a worker dies; else all end
    combine: Combine | None = None  # the aggregation of the vectors of a round; None: their sum
    batch: int = 0
    """The weight of a step, if its batch is kept whoever lives; 0: the number of live workers."""
    learners: tuple[int, ...] = ()
    """The learner of each worker, by rank; empty where each is one of its own. `wait_for` counts learners."""

    @cached_property
    def ranks(self) -> range:
        return range(max(self.size, self.max_size))

    @property
    def callers(self) -> int:
        """The number of workers, or learners, that may call for a round where all live."""
        return len(set(self.learners)) if self.learners else self.size

    @property
    def quorum(self) -> int:
        """The number of them that have to call where all live."""
        return self.quorum_of(self.callers)

    def quorum_of(self, size: int) -> int:
        """Return how many have to call where `size` are left."""
        wanted = self.wait_for
        if wanted == "all":
            return size
        if wanted == "designated":
            return 1
        if wanted == "majority":
            return size // 2 + 1
        assert isinstance(wanted, int | float)
        return wanted if isinstance(wanted, int) else math.ceil(Fraction(repr(wanted)) * size)  # 0.28 of 25 is 7

    @cached_property
    def is_large(self) -> bool:
        """Whether a worker announces its vector before it is sent, and confirms results: see `Carrying`."""
        return self.vector_bytes >= _LARGE

    @cached_property
    def releases_at_once(self) -> bool:
        """Whether contributions and results are released once all have the round, and not only with the next one."""
        return self.vector_bytes >= _RELEASED

    @cached_property
    def gives_with_calls(self) -> bool:
        """Whether a worker that waits sends its contribution with its call. From so many workers on, messages limit the
        rounds of small vectors."""
        is_of_many = self.size >= _MANY and self.pieces == 1
        return is_of_many and not self.fragments and not self.learners and not self.is_large

    @property
    def log_rounds(self) -> int:
        """The most results kept after they were applied, for workers that are behind."""
        return max(2 * self.max_staleness, 8) if not self.fragments else max(8 * self.fragments, 64)

    def weight_of(self, staleness: int) -> float:
        """Return the weight of a contribution of that staleness."""
        if self.late_weight == "gated":
            gate = (1 + math.cos(math.pi * staleness / self.late_cutoff)) / 2 if staleness < self.late_cutoff else 0.0
            return gate * math.exp(-self.late_alpha * staleness)
        if self.late_weight == "root":
            return 1.0 / math.sqrt(1 + staleness)
        return 1.0 if self.late_weight == "full" else 1.0 / (1 + staleness)


def amended(agreed: Agreed, settings: Mapping[str, Any]) -> Agreed:
    """Return `agreed`, of the start, with the `settings` that are in force by now."""
    return replace(agreed, **settings) if settings else agreed


def check_change(agreed: Agreed, settings: Mapping[str, Any], joined: int = 0) -> None:
    """Raise `ConfigurationError` for a change that is not possible, after so many workers have `joined`."""
    for name in settings:
        if name not in CHANGEABLE:
            raise unknown("setting of rounds that changes", name, CHANGEABLE)
    new = amended(agreed, settings)
    check(new, joined // agreed.pieces)
    if new.max_staleness > agreed.max_staleness:
        raise ConfigurationError(
            f"max_staleness is {new.max_staleness}; it changes between 0 and what it was at the start, "
            f"{agreed.max_staleness}"
        )


def check(agreed: Agreed, joined: int = 0) -> None:
    """Raise `ConfigurationError` for settings that no quorum can have; `joined` callers are there beside those of the
    start."""
    wanted, size = agreed.wait_for, agreed.callers + joined
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
    if agreed.sum_threads < 0:
        raise ConfigurationError(f"sum_threads is {agreed.sum_threads}; it must be a number of threads, or 0")
    if not 0 <= agreed.window < math.inf:
        raise ConfigurationError(f"window is {agreed.window!r}; it must be a number of seconds (at least 0)")
    for name in ("grace", "patience"):
        if not 0 < getattr(agreed, name) < math.inf:
            raise ConfigurationError(f"{name} is {getattr(agreed, name)!r}; it must be a number of seconds above 0")
