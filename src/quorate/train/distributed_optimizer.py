"""The type of what `distribute` returns, for annotations, type checkers and `isinstance`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

    # The object is of a subclass of the user's own class, which no annotation says for every class. `Any` among the
    # bases says that there is more, so that the object may be assigned to a variable of the user's class.
    class _Plain(Optimizer, Any):  # type: ignore[misc]
        """The attributes of the user's optimizer: those of torch, and those of its own class."""

else:
    _Plain = ABC


class DistributedOptimizer(_Plain):
    """An optimizer that `quorate.distribute` has returned: one of the user's own class that agrees with the others."""

    @abstractmethod
    def accumulate(self) -> AbstractContextManager[None]:
        """Backward passes inside only add to `.grad` (gradient accumulation); the first one outside agrees."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all workers have ended and leave equal replicas; the last call of a training."""
