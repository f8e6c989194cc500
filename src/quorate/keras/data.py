"""`quorate.keras.data`: this worker's part of the data, for `fit`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from quorate.core.errors import ConfigurationError
from quorate.data.loading import loader


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


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of a `quorate.loader` for `fit`, which asks for them in order, and sometimes twice for the first."""

    def __init__(self, batches: Any) -> None:
        super().__init__()
        self.loader = batches
        self._iterator: Iterator[Any] | None = None
        self._batch: tuple[Any, ...] = ()
        self._place = -1

    def __len__(self) -> int:
        return len(self.loader)

    def __getitem__(self, index: int) -> Any:
        if index == self._place and self._iterator is not None:
            return self._batch
        if self._iterator is None:
            self._iterator = iter(self.loader)
        if index != self._place + 1:
            raise ConfigurationError(f"fit asked for batch {index} after batch {self._place}; pass workers=1")
        self._batch, self._place = tuple(map(_array, next(self._iterator))), index
        return self._batch

    def on_epoch_end(self) -> None:
        """End the iteration over the loader, so that the next epoch has another order."""
        if self._iterator is not None:
            for _ in self._iterator:
                pass
        self._iterator, self._place, self._batch = None, -1, ()


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
