"""The numbers of a worker's own replica, as a strategy sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quorate.core.moments import Moments
from quorate.core.vectors import Flat


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
