"""Labels of batches, which DataLoader workers return in the order in which they are ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset, default_collate


class Labelled(Dataset[Any]):
    """`dataset`, with each batch accompanied by the indices of its examples; for use with `collate`."""

    def __init__(self, dataset: Dataset[Any], collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._dataset: Any = dataset
        self._collate: Callable[[list[Any]], Any] = collate_fn or default_collate

    def __getitems__(self, indices: list[int]) -> tuple[list[int], list[Any]]:
        together = getattr(self._dataset, "__getitems__", None)
        return indices, [self._dataset[index] for index in indices] if together is None else together(indices)

    def collate(self, labelled: Any) -> tuple[list[int], Any]:
        """Return (indices, batch)."""
        indices, examples = labelled
        return indices, self._collate(examples)
