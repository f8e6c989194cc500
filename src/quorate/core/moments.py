"""The moments of an optimizer of Adam's kind as a strategy sees them, and steps by a momentum of all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from quorate.core.vectors import Flat


@dataclass(frozen=True, kw_only=True)
class AgreedMomentum:
    """A momentum by which the user's optimizer makes a step, in place of a gradient; its variance stays as it is."""

    vector: Flat
    """The momentum, without a correction for its beginning with 0."""
    squares: int | None = None
    """The number of squares in the variance, for that correction; None: it needs none."""
    gradient: Flat | None = None
    """A gradient whose squares the variance takes in first."""
    rates: Sequence[float] | None = None
    """The learning rate of each parameter group; None: the optimizer's own."""
    ratios: Sequence[float] | None = None
    """The trust ratio of each parameter, under LAMB; None: that of its norms."""
    counted: int = 1
    """How much the optimizer's number of steps rises."""


class Moments(Protocol):
    """The moments of Adam, AdamW or LAMB: the momentum (`exp_avg`) and the variance (`exp_avg_sq`).

    Parameters without moments, which no step has updated, count as zeros and stay as they are.
    """

    def check(self) -> None:
        """Raise `ConfigurationError` where there is no momentum, or where the variance is one of several."""

    @property
    def steps(self) -> int:
        """The least number of steps of a parameter that has moments; 0 before the first step."""

    @property
    def memory(self) -> int:
        """1 / (1 - beta2): the number of steps that the variance remembers."""

    def momentum_after(self, gradient: Flat) -> Flat:
        """Return beta1 m + (1 - beta1) g; g has the decay of Adam, and not that of AdamW."""

    def variance_norm(self, squares: int | None = None) -> float:
        """Return the sum of the variance, corrected for its beginning with 0.

        `squares` is the number of squares in it; None: that of steps. The same below.
        """

    def units(self, squares: int | None = None) -> Flat:
        """Return for each number with a variance above 0 the root of the mean of these in its tensor; else 0."""

    def trust_ratios(self) -> list[float]:
        """Return the ratio that LAMB would have in a step by these moments, for each parameter; 1 if it has none."""

    def correct_variance(self, squares: int | None = None) -> None:
        """Correct the variance for its beginning with 0, once and for all."""
