"""The choice among layouts with strategies: seconds, cost or energy of a training to its target. Pure.

A training of E examples takes E (1 + B / B_crit) x passes / B steps, for a batch B and the critical batch B_crit of its
gradients (McCandlish et al. 2018). `passes` are those of the strategy over those of a mean of all gradients in each
step. With failures, only the share `goodput` of all steps counts.

A strategy whose passes were not measured cannot be ranked among others. It is ranked behind them, with the passes up to
which it would be the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.core.gradient_noise import example_factor
from quorate.planning.money import Cost
from quorate.planning.prediction import Prediction

OBJECTIVES = ("time", "cost", "energy")
Learning = Literal["exact", "measured", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One layout with a strategy, and what a training takes with it."""

    prediction: Prediction
    batch: int
    """Examples of a step of all workers."""
    learning: Learning
    passes: float = 1.0
    """Passes over the data, over those of a mean of all gradients in each step; 1 if not measured."""
    noise: float = 1.0
    """1 + B / B_crit; 1 without a critical batch."""
    goodput: float | None = None
    """None: without failures."""
    staleness: float = 0.0
    contributors: float | None = None
    cost: Cost | None = None
    """The cost of the whole training; None without prices."""

    @property
    def is_known(self) -> bool:
        """Whether its passes are known."""
        return self.learning != "not measured"

    @property
    def each(self) -> float:
        """Seconds for each useful example: the measure of time."""
        return self.prediction.seconds * self.passes * self.noise / (self.goodput or 1.0) / self.batch

    def to_target(self, examples: float) -> float:
        """Return the seconds of a training of so many examples."""
        return self.each * examples

    def value(self, objective: str) -> float:
        """Return the quantity to be minimized; infinity where it is not known."""
        if objective == "time":
            return self.each
        if self.cost is None:
            return math.inf
        if objective == "energy":
            return math.inf if self.cost.kwh is None else self.cost.kwh
        return min((cost for cost in (self.cost.rented, self.cost.bought) if cost is not None), default=math.inf)


def noise_of(batch: int, critical: float | None) -> float:
    """Return 1 + B / B_crit; 1 where the critical batch is not known."""
    return 1.0 if critical is None else example_factor(critical, batch)


def ranked(choices: Sequence[Choice], objective: str = "time", as_good: float = 0.0) -> list[Choice]:
    """Return the choices with known passes, the best first, and then the others.

    Among those within `as_good` (a share) of the best, the one with the fewest pieces comes first.
    """

    def rank(choice: Choice) -> tuple[bool, float, float, float]:
        value = choice.value(objective)
        rounded = float(f"{value:.3g}") if math.isfinite(value) else value
        return not choice.is_known, rounded, choice.prediction.sent, value

    order = sorted(choices, key=rank)
    if not order or not order[0].is_known:
        return order
    most = order[0].value(objective) * (1 + as_good)
    near = [choice for choice in order if choice.is_known and choice.value(objective) <= most]
    first = min(near, key=_pieces)
    return [first, *(choice for choice in order if choice is not first)]


def _pieces(choice: Choice) -> tuple[int, ...]:
    layout = choice.prediction.layout
    return layout.stages * layout.chunks, layout.tensor, layout.shards


def may_need(choice: Choice, first: Choice, objective: str = "time") -> float | None:
    """Return the passes up to which a choice that was not measured is better than `first`; None if it is measured."""
    if choice.is_known or not choice.value(objective):
        return None
    return first.value(objective) / choice.value(objective)
