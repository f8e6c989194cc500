"""The observers of the means of an optimizer, the schedule of their parts, and the part of a worker that has paused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quorate.core.contracts import Wire
from quorate.core.means import Mean
from quorate.core.vectors import Flat
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.means.headers import Announced
from quorate.means.reducer import Note
from quorate.observe.exclusions import ExclusionWatch
from quorate.observe.step_observer import Spending


@dataclass(frozen=True)
class Watches:
    """The observers of the means of an optimizer."""

    announced: Announced
    spending: Spending
    beside: list[FaultTolerantSum] | None
    """The sums of all optimizers of this worker, where they continue after a death; None where they do not."""
    exclusions: ExclusionWatch
    away_changed: Callable[[bool], None]
    """Called before the update of a step in which more workers have paused or ended than in the last mean (True), or
    fewer (False)."""
    choices: Note = lambda codecs, why: None
    """Called where a reducer has chosen codecs."""
    within: Wire | None = None
    """The workers that hold the other pieces of this replica; None where this worker holds all of it."""


class PartSchedule(Protocol):
    """Says before each sum of gradients in which parts it is formed; the same on all workers."""

    def before_sum(self) -> None:
        """The next sum is about to be filled: call `MeansOfAll.arrange` here."""

    def sum_begins(self) -> None:
        """A sum is launched."""


@dataclass(frozen=True)
class Shadow:
    """The part of this worker in means in which it takes part without stepping, as it has paused or ended."""

    contribution: Callable[[], tuple[tuple[Flat, float] | None, int | None]]
    """Returns a vector and its weight, or None; and the checksum of parameters that the script has edited since the
    newest mean, if this worker has made no step since."""
    apply: Callable[[Mean], None]
    """Takes the mean; not called if no worker contributed."""
    synchronized: Callable[[], None]
    """Called when all workers have paused or ended."""
    settle: Callable[[float], None] = lambda weight: None
    """Called after every mean of parameters, with the weight of this worker, for tables beside them."""
