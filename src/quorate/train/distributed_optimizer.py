"""The type of what `distribute` returns, for annotations, type checkers and `isinstance`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
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
    def weight(self, count: float | Tensor, *, full: float | None = None) -> None:
        """Say over how many terms (tokens, labels, pixels) the loss of the next backward pass is a mean.

        The gradient of a step is then the mean over the terms of all its backward passes, on all workers: that of one
        batch of all. Backward passes without a call before them belong to the batch of the pass before. Call it on all
        workers, before each batch; with 0 for a batch without any term, whose gradient is dropped.

        Where no mean of all gradients is formed in a step, a gradient counts `count / full`: in rounds of less than
        all, under gossip, and on servers. Under local steps, a replica counts by its terms since the mean before.

        Args:
            count: The number of terms of this worker's batch, a finite number of at least 0.
            full: The number of terms of a full batch of one worker, the same in each call.

        Raises:
            ConfigurationError: `count` or `full` is no such number, `full` is missing and needed, or the strategy or
                reducer takes no weights.

        Example:
            >>> optimizer = quorate.distribute(optimizer, model)
            >>> losses = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            >>> optimizer.weight(len(losses))
            >>> losses.mean().backward()
            >>> optimizer.step()
        """

    @property
    @abstractmethod
    def has_updated(self) -> bool:
        """Whether the newest `step()` was the last of its step on this worker: False between micro-batches.

        It is always True without `batch="kept"`. With it, workers may have unequally many batches in a step. What all
        workers do together inside a loop over batches (`world.mean`, an evaluation, a checkpoint) is done where this is
        True; elsewhere a `ConfigurationError` is raised.

        Example:
            >>> optimizer = quorate.distribute(optimizer, model)
            >>> optimizer.step()
            >>> if optimizer.has_updated:
            ...     world.mean(loss.detach())
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
