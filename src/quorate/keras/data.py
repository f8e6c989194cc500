"""`quorate.keras.data`: this worker's part of the data, for `fit`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import keras
import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.data.consumption import Consumed
from quorate.data.loading import loader
from quorate.wire import current


class Arrays(Dataset[Any]):
    """Examples of arrays that have the same length."""

    def __init__(self, *arrays: Any) -> None:
        self._arrays = [np.asarray(x) for x in arrays]
        if len({len(x) for x in self._arrays}) != 1:
            raise ConfigurationError(f"quorate.keras.data got arrays of different lengths: {[len(x) for x in arrays]}")

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(x[index] for x in self._arrays)

    def __getitems__(self, places: list[int]) -> list[tuple[Any, ...]]:
        return [self[place] for place in places]


_LOOKED_AT = 2
"""The number of batches that `fit` may look at before it trains."""


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of a `quorate.loader` for `fit`, which asks for the first ones twice, in any order."""

    def __init__(self, batches: Any) -> None:
        super().__init__()
        self.loader = batches
        self._iterator: Iterator[Any] | None = None
        self._first: dict[int, Any] = {}
        """The first batches of the epoch, by the index for which `fit` has asked."""
        self._again: list[Any] = []
        """Batches that were looked at before the epoch, in their order."""
        self._count = 0
        current.here().context(_Made).batches.add(self)

    def __len__(self) -> int:
        return len(self.loader)

    def __getitem__(self, index: int) -> Any:
        if self._again:
            return self._again.pop(0)
        if index in self._first:
            return self._first[index]
        batch = tuple(map(_array, self._next()))
        if len(self._first) < _LOOKED_AT:
            self._first[index] = batch
        self._count += 1
        return batch

    def _next(self) -> Any:
        if self._iterator is not None and (batch := next(self._iterator, None)) is not None:
            return batch
        self._iterator = iter(self.loader)  # of the next pass, after the remainder of one that was resumed
        return next(self._iterator)

    def forget(self) -> None:
        """Begin at the loader's position, which a checkpoint has set."""
        self._iterator, self._first, self._again, self._count = None, {}, [], 0
        current.here().context(Consumed).forget_ahead()

    def on_epoch_begin(self) -> None:
        """Begin with the batches that were looked at, so that each step counts its own examples."""
        self._again, self._first = list(self._first.values()), {}

    def on_epoch_end(self) -> None:
        """End the iteration over the loader, so that the next epoch has another order."""
        if self._count > _LOOKED_AT or self._count == len(self):
            self._first, self._again = {}, []
        if self._iterator is not None and self._count == len(self):
            next(self._iterator, None)
            self._iterator, self._count = None, 0


@dataclass
class _Made:
    batches: WeakSet[Batches] = field(default_factory=WeakSet)


def forget_batches() -> None:
    """Let the batches of this worker begin at the positions of their loaders, which a checkpoint has set."""
    for batches in current.here().context(_Made).batches:
        batches.forget()


def data(*arrays: Any, batch_size: int, **settings: Any) -> Batches:
    """Return this worker's part of the data for `fit`, in a new order in each epoch.

    Args:
        arrays: Arrays of the same length (inputs, targets, and weights of examples), or a single dataset of torch.
        batch_size: Examples per batch and per worker.
        settings: The settings of `quorate.loader`: `share`, `seed`, `drop_last` and others.

    Returns:
        A `PyDataset` of Keras.

    Raises:
        ConfigurationError: Arrays differ in length, or as `quorate.loader`.

    Example:
        >>> model.fit(quorate.keras.data(x, y, batch_size=32), epochs=2)
    """
    is_dataset = len(arrays) == 1 and isinstance(arrays[0], Dataset)
    dataset: Any = arrays[0] if is_dataset else Arrays(*arrays)
    return Batches(loader(dataset, batch_size, **settings))


def _array(x: Any) -> Any:
    return x.numpy() if isinstance(x, Tensor) else x
