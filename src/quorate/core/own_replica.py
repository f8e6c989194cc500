"""The numbers of a worker's own replica, as a strategy sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quorate.core.vectors import Flat


class OwnReplica(Protocol):
    """One worker's replica, as one vector to be averaged and back."""

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The learning rate of every parameter group, as it stands."""

    @property
    def has_moments(self) -> bool:
        """Whether the optimizer remembers gradients, or may: momenta and the like."""

    @property
    def tables(self) -> frozenset[int]:
        """Which of the parameters, counted in their layout's order, are weights of embeddings (modules of torch)."""

    def read(self, *, moments: bool = False, numbers: Sequence[float] = (), only: Sequence[int] | None = None) -> Flat:
        """A copy of the parameters; with `moments` of the optimizer's as well, and with `numbers` behind them.

        With `only` these of the tensors, counted in the order of the parameters' layout. Equal settings give equal
        layouts on all workers, whatever an optimizer has come to keep.
        """

    def write(self, mean: Flat, *, moments: bool = False, only: Sequence[int] | None = None) -> None:
        """Copy such a vector into the model, and with `moments` into the optimizer's state."""

    def take_edits(self, shown: Flat, into: Flat, scale: float = 1.0) -> bool:
        """Add to `into`, times `scale`, what the script has written into the parameters since they were `shown`.

        Both vectors begin with the parameters in the order of their layout. Returns whether anything was written. For
        strategies that go on from a copy of the parameters of their own. Cost: one pass that compares.
        """

    def shift(self, way: Flat) -> None:
        """Add a vector that begins with the parameters, in the order of their layout, to the model's parameters."""

    def parameters_of(self, mean: Flat, *, only: Sequence[int] | None = None) -> Flat:
        """The parameters in such a vector, as a vector over all of them (0 where they are not in it): a copy."""

    def numbers_of(self, mean: Flat) -> tuple[float, ...]:
        """The numbers that were behind them."""

    def forget_moments(self, *, only: Sequence[int] | None = None) -> None:
        """Let the optimizer begin anew: what it keeps of every parameter that is trained (or of these) is gone."""

    def by_group(self, vector: Flat, factors: Sequence[float]) -> Flat:
        """`vector` over the parameters, each multiplied by the factor of its parameter group."""
