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
    """The type of the optimizers that `quorate.distribute` returns: a subclass of the class of your optimizer.

    Example:
        >>> optimizer = quorate.distribute(optimizer, model)
        >>> isinstance(optimizer, quorate.DistributedOptimizer), isinstance(optimizer, torch.optim.SGD)
        (True, True)
    """

    @abstractmethod
    def accumulate(self) -> AbstractContextManager[None]:
        """Return a context in which backward passes only add to `.grad`; the first one outside averages the sum.

        Example:
            >>> optimizer = quorate.distribute(optimizer, model)
            >>> with optimizer.accumulate():
            ...     model(inputs).sum().backward()
            >>> model(inputs).sum().backward()
            >>> optimizer.step()
        """

    @abstractmethod
    def finish(self) -> None:
        """Wait until all workers have ended, and leave equal replicas: the last call of a training, or made at exit.

        Raises:
            ConfigurationError: Parameters were updated, and `step()` was never called.
            Diverged: Replicas that must be equal differ.

        Example:
            >>> optimizer = quorate.distribute(optimizer, model)
            >>> optimizer.finish()
        """
