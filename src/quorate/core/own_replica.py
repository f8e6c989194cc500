"""What a strategy of local steps sees of its own replica: the numbers to be averaged, what is known of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quorate.core.contracts import Clock
from quorate.core.vectors import Flat


class OwnReplica(Protocol):
    """One worker's replica, as one vector to be averaged and back."""

    @property
    def clock(self) -> Clock:
        """That of the worker."""
        ...

    @property
    def examples(self) -> int:
        """Of the step that is being made. Raises `ConfigurationError` where the loader is not `quorate.shard`'s."""
        ...

    @property
    def step_began(self) -> float:
        """When the step that is being made began, by the clock."""
        ...

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The learning rate of every parameter group, as it stands."""
        ...

    def read(self, *, moments: bool = False, numbers: Sequence[float] = (), only: Sequence[int] | None = None) -> Flat:
        """A copy of the parameters; with `moments` of the optimizer's as well, and with `numbers` behind them.

        With `only` these of the tensors, counted in the order of the parameters' layout. Equal settings give equal
        layouts on all workers, whatever an optimizer has come to keep.
        """
        ...

    def write(self, mean: Flat, *, moments: bool = False, only: Sequence[int] | None = None) -> None:
        """Copy such a vector into the model, and with `moments` into the optimizer's state."""
        ...

    def measure_distance(self, mean: Flat, *, only: Sequence[int] | None = None) -> None:
        """Record how far the model is from `mean`, a mean of all workers' replicas, in the same layout as `read`.

        Called before `write(mean)`. Does nothing where no records are kept. Cost otherwise: two passes over the
        parameters, in double precision.
        """
        ...

    def take_edits(self, shown: Flat, into: Flat, scale: float = 1.0) -> bool:
        """Add to `into`, times `scale`, what the script has written into the parameters since they were `shown`.

        Both vectors begin with the parameters in the order of their layout. Returns whether anything was written. For
        strategies that go on from a copy of the parameters of their own. Cost: one pass that compares.
        """
        ...

    def shift(self, way: Flat) -> None:
        """Add a vector that begins with the parameters, in the order of their layout, to the model's parameters."""
        ...

    def parameters_of(self, mean: Flat, *, only: Sequence[int] | None = None) -> Flat:
        """The parameters in such a vector, as a vector over all of them (0 where they are not in it): a copy."""
        ...

    def numbers_of(self, mean: Flat) -> tuple[float, ...]:
        """The numbers that were behind them."""
        ...

    def forget_moments(self, *, only: Sequence[int] | None = None) -> None:
        """Let the optimizer begin anew: what it keeps of every parameter that is trained (or of these) is gone."""
        ...

    def step_alone(self, is_alone: bool) -> None:
        """Whether backward passes, from the next one on, hand on no gradient, though the strategy may agree there."""
        ...

    def vote(self) -> None:
        """Tell all workers something, with the next exchange, and every one after it."""
        ...

    @property
    def has_voted(self) -> bool:
        """Whether any worker had told that by the newest exchange; it changes for all in the same one."""
        ...

    def by_group(self, vector: Flat, factors: Sequence[float]) -> Flat:
        """`vector` over the parameters, each multiplied by the factor of its parameter group."""
        ...
