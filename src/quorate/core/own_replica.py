"""A strategy's view of its own replica: the numbers to be averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quorate.core.vectors import Flat


class OwnReplica(Protocol):
    """One worker's replica, read as a vector to be averaged and written from one."""

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The current learning rate of every parameter group."""

    @property
    def has_moments(self) -> bool:
        """Whether the optimizer remembers gradients, or may: momenta and the like."""

    @property
    def tables(self) -> frozenset[int]:
        """Indices, in the order of the layout, of parameters that are weights of embeddings (modules of torch)."""

    def read(self, *, moments: bool = False, numbers: Sequence[float] = (), only: Sequence[int] | None = None) -> Flat:
        """Return a copy of the parameters; with `moments` of the optimizer's as well, and with `numbers` behind them.

        With `only` it contains these tensors, indices in the order of the parameters' layout. Equal arguments give
        equal layouts on all workers, whatever an optimizer keeps by then.
        """

    def write(self, mean: Flat, *, moments: bool = False, only: Sequence[int] | None = None) -> None:
        """Copy such a vector into the model, and with `moments` into the optimizer's state."""

    def take_edits(self, shown: Flat, into: Flat, scale: float = 1.0) -> bool:
        """Add to `into`, times `scale`, the changes that the script has made to the parameters since they were `shown`.

        Both vectors begin with the parameters in the order of their layout. Returns whether there was any change. For
        strategies that continue from their own copy of the parameters. Cost: one pass that compares.
        """

    def shift(self, way: Flat) -> None:
        """Add a vector that begins with the parameters, in the order of their layout, to the model's parameters."""

    def parameters_of(self, mean: Flat, *, only: Sequence[int] | None = None) -> Flat:
        """Return a copy of the parameters in such a vector, over all of them (0 where they are not in it)."""

    def numbers_of(self, mean: Flat) -> tuple[float, ...]:
        """Return the numbers that were behind the parameters."""

    def forget_moments(self, *, only: Sequence[int] | None = None) -> None:
        """Delete the optimizer's state of every parameter that is trained (or of these)."""

    def by_group(self, vector: Flat, factors: Sequence[float]) -> Flat:
        """Return `vector`, over the parameters, each multiplied by the factor of its parameter group."""
