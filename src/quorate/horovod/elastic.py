"""Horovod's elastic training: state that is committed, restored and made equal, and a sampler that goes on.

Under Quorate the launcher and the strategy handle workers that die or join. With a strategy that outlives deaths the
others train on. `quorate run --restart N` starts new workers in place of dead ones, and `quorate join` adds workers. So
`run` calls the training function once, and a state is restored only if the script asks for it.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator, Sized
from typing import Any, TypeVar

from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import Sampler

from quorate.horovod.objects import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from quorate.horovod.workers import rank, size

R = TypeVar("R")


class State:
    """Plain values that all workers have in common, as attributes: epoch, batch."""

    def __init__(self, **kwargs: Any) -> None:
        self._names = list(kwargs)
        self._callbacks: list[Callable[[], None]] = []
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        self.save()

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def save(self) -> None:
        """Keep the values as they are, in memory."""
        self._saved = copy.deepcopy(self._values())

    def restore(self) -> None:
        """Go back to the values that were kept last."""
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Give rank 0's values to all workers, and keep them."""
        for name, value in broadcast_object(self._values(), 0).items():
            setattr(self, name, value)
        self.save()

    def commit(self) -> None:
        """Keep the values, in memory; `quorate.save()` writes a checkpoint."""
        self.save()

    def check_host_updates(self) -> None:
        """Do nothing: workers that join, or die, do not interrupt a training."""

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Call these whenever `on_reset` is called."""
        self._callbacks += callbacks

    def on_reset(self) -> None:
        """Call the registered functions."""
        for callback in self._callbacks:
            callback()


ObjectState = State


class TorchState(State):
    """The state of a model, an optimizer and samplers, and plain values."""

    def __init__(self, model: Module | None = None, optimizer: Optimizer | None = None, **kwargs: Any) -> None:
        handled = {name: x for name, x in kwargs.items() if hasattr(x, "state_dict") and hasattr(x, "load_state_dict")}
        if model is not None:
            handled["model"] = model
        if optimizer is not None:
            handled["optimizer"] = optimizer
        self._handled: dict[str, Any] = handled
        self._states: dict[str, Any] = {}
        for name, x in handled.items():
            setattr(self, name, x)
        super().__init__(**{name: value for name, value in kwargs.items() if name not in handled})

    def save(self) -> None:
        self._states = {name: copy.deepcopy(x.state_dict()) for name, x in self._handled.items()}
        super().save()

    def restore(self) -> None:
        for name, state in self._states.items():
            self._handled[name].load_state_dict(copy.deepcopy(state))
        super().restore()

    def sync(self) -> None:
        for x in self._handled.values():
            if isinstance(x, Module):
                broadcast_parameters(x.state_dict(), 0)
            elif isinstance(x, Optimizer):
                broadcast_optimizer_state(x, 0)
            else:
                x.load_state_dict(broadcast_object(x.state_dict(), 0))
        super().sync()


class ElasticSampler(Sampler[int]):
    """Gives each worker its share of the indices that no worker has processed yet in this epoch.

    Args:
        dataset: What has a length.
        shuffle: Whether indices are shuffled again in each epoch.
        seed: Seed of the order, the same on all workers.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed, self.epoch = dataset, shuffle, seed, 0
        self.processed_indices: set[int] = set()
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: nothing of it is processed."""
        self.epoch, self.processed_indices = epoch, set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that this worker has processed its batch number `batch_idx`."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: list[int]) -> None:
        """Note that these indices are processed."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return the indices of a batch of this worker."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def reset(self) -> None:
        """Distribute again what is not processed; every worker has equally many indices, some of them twice."""
        remaining = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(remaining)
        share = -(-len(remaining) // size())
        repeated = remaining * (1 + share * size() // max(1, len(remaining)))
        self.indices = repeated[: share * size()][rank() :: size()]

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and the indices that are processed."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.epoch, self.processed_indices = state["epoch"], set(state["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Let a training function begin with rank 0's state on all workers: `func(state, ...)`."""

    @functools.wraps(func)
    def begun(state: State, *args: Any, **kwargs: Any) -> R:
        state.sync()
        return func(state, *args, **kwargs)

    return begun


__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
