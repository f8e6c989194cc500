"""What means, rounds and exchanges of an optimizer ask of its worker, call, and tell besides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from quorate.agreement.headers import Announced
from quorate.core.means import Mean
from quorate.core.vectors import Flat
from quorate.observe.backward import Spending
from quorate.reducers.fault_tolerant_sum import FaultTolerantSum


@dataclass(frozen=True)
class Shadow:
    """What this worker does in means that it takes part in without stepping, as it is paused or has ended."""

    contribution: Callable[[], tuple[Flat, float] | None]
    """What it gives, and its weight."""
    apply: Callable[[Mean], None]
    """Takes the mean that came of it; not called if nobody gave anything."""
    synchronized: Callable[[], None]
    """Called when all have paused or ended."""


@dataclass(frozen=True)
class Watches:
    """What watches over the means of an optimizer."""

    announced: Announced
    spending: Spending
    beside: list[FaultTolerantSum] | None
    """The sums of all of this worker's optimizers, where they go on without the dead; None where they do not."""


class Copies(Protocol):
    """Copies of whole replicas; see `membership.replica_copy.ReplicaCopy`."""

    def capture(self, *, is_whole: bool) -> tuple[dict[str, Any], Sequence[Tensor]]: ...

    def adopt(self, about: dict[str, Any], tensors: Sequence[Tensor]) -> None: ...


@dataclass(frozen=True)
class InRounds:
    """What rounds ask of the worker, and call."""

    step: Callable[[], int]
    """Steps that it has made."""
    share: Callable[[float | None], float]
    """What a contribution of this weight counts, or of its step's where that is None: 1 for a step of full batches, so
    that dividing by the number of workers stays right."""
    apply: Callable[[Mean], None]
    """Takes a round that came while it did not step."""
    copies: Copies


@dataclass(frozen=True)
class AmongNeighbours:
    """What exchanges with neighbours ask of the worker, and call."""

    members: Callable[[], Collection[int]]
    """All ranks that there have been."""
    mass: Callable[[], float]
    """What its replica counts in the mean of all."""
    weighs: Callable[[], bool]
    """Whether replicas count differently, by push-sum weights that travel."""
    drain: Callable[[], None]
    """Leaves nothing of its strategy in flight."""
