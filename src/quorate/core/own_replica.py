"""The numbers of a worker's own replica, and the moments of an optimizer of Adam's kind, as a strategy sees them."""

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


class OwnReplica(Protocol):
    """One worker's replica: as a vector that can be averaged, and back."""

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The current learning rate of every parameter group."""

    @property
    def moments(self) -> Moments:
        """The moments of an optimizer of Adam's kind."""

    @property
    def has_moments(self) -> bool:
        """Whether the optimizer remembers gradients, or may: momenta and the like."""

    @property
    def tables(self) -> frozenset[int]:
        """The parameters that are weights of embeddings (modules of torch), by their place in the layout."""

    def read(self, *, moments: bool = False, numbers: Sequence[float] = (), only: Sequence[int] | None = None) -> Flat:
        """Return a copy of the parameters, as a vector; equal arguments give equal layouts on all workers.

        Args:
            moments: Whether the moments of the optimizer follow the parameters; zeros for those that it does not have.
            numbers: Numbers that follow as a last tensor.
            only: The places of the tensors, in the order of the parameters' layout; None: all.
        """

    def write(self, mean: Flat, *, moments: bool = False, only: Sequence[int] | None = None) -> None:
        """Copy a vector in the layout of `read` into the model, and with `moments` into the optimizer's state."""

    def take_edits(self, shown: Flat, into: Flat, scale: float = 1.0) -> bool:
        """Add to `into`, times `scale`, the changes by the script since the parameters were `shown`.

        Both vectors begin with the parameters in the order of their layout. For strategies that go on from a copy of
        the parameters. Returns whether the script has changed any. Cost: one pass that compares.
        """

    def shift(self, delta: Flat) -> None:
        """Add a vector that begins with the parameters, in the order of their layout, to the model's parameters."""

    def parameters_of(self, mean: Flat, *, only: Sequence[int] | None = None) -> Flat:
        """Return a copy of the parameters in a vector of `read`, over all parameters, 0 for missing ones."""

    def numbers_of(self, mean: Flat) -> tuple[float, ...]:
        """Return the `numbers` in a vector of `read`."""

    def forget_moments(self, *, only: Sequence[int] | None = None) -> None:
        """Delete the optimizer's state of every parameter that is trained, or of these."""

    def by_group(self, vector: Flat, factors: Sequence[float]) -> Flat:
        """Return `vector`, over the parameters, with each multiplied by the factor of its parameter group."""
