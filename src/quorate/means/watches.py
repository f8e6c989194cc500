"""The observers of the means of an optimizer, and the schedule of their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quorate.core.contracts import Wire
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
