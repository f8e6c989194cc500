"""A DataLoader over one worker's share of the data, which counts its epochs itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import StaticShare


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How examples are fetched: torch's DataLoader's own options, with its names, meanings and defaults."""

    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: str | BaseContext | None = None
    generator: torch.Generator | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    in_order: bool = True


class ShareBatches:
    """A batch sampler: the index lists of one worker's share of epoch `epoch`.

    Iterating it draws the order at once, not at the first batch, so that iterators begun one after the other have
    the epochs in which they began.
    """

    def __init__(self, share: StaticShare, examples: int, batch_size: int) -> None:
        self.share = share
        self.examples = examples
        self.batch_size = batch_size
        self.epoch = 0

    def __len__(self) -> int:
        full, rest = divmod(self.share.length(self.examples), self.batch_size)
        return full + (rest > 0 and not self.share.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        indices = self.share.indices(self.examples, self.epoch).tolist()
        starts = range(0, len(self) * self.batch_size, self.batch_size)
        return iter([indices[start : start + self.batch_size] for start in starts])


class Loader:
    """One worker's batches: iterating it the e-th time (from 0) gives epoch e, in that epoch's order.

    Every worker's loader has the same length. An iteration counts as an epoch when it begins, also if it is left
    early. Wraps a torch DataLoader (`torch_loader`) rather than being one: its sampler is not the user's to change.

    Raises `ConfigurationError` for a batch size below 1, data that is empty or has no length, and, with
    `drop_last`, a batch larger than the share.
    """

    def __init__(self, dataset: Dataset[Any], batch_size: int, share: StaticShare, loading: Loading) -> None:
        examples = _number_of_examples(dataset)
        _check_batch_size(batch_size, share, examples)
        self.dataset = dataset
        self.batch_size = batch_size
        self.share = share
        self._epoch = 0
        self._next_epoch = 0
        self._batches = ShareBatches(share, examples, batch_size)
        self.torch_loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=self._batches,
            num_workers=loading.num_workers,
            collate_fn=loading.collate_fn,
            pin_memory=loading.pin_memory,
            timeout=loading.timeout,
            worker_init_fn=loading.worker_init_fn,
            multiprocessing_context=loading.multiprocessing_context,
            generator=loading.generator,
            prefetch_factor=loading.prefetch_factor,
            persistent_workers=loading.persistent_workers,
            in_order=loading.in_order,
        )

    @property
    def epoch(self) -> int:
        """The epoch begun last, from 0 (0 also before the first)."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch` (as DistributedSampler's `set_epoch`); later ones go on from it."""
        self._epoch = self._next_epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self._epoch = self._batches.epoch = self._next_epoch
        self._next_epoch += 1
        return iter(self.torch_loader)

    def __len__(self) -> int:
        """Batches per epoch of this worker; the same on all workers."""
        return len(self._batches)


def _number_of_examples(dataset: Dataset[Any]) -> int:
    kind = type(dataset).__name__
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise ConfigurationError(
            f"shard needs a dataset with a length and an index, and {kind} is iterable only; split its stream by "
            "world.rank and world.size and use torch's DataLoader, or load it into a map-style dataset"
        )
    examples = len(cast(Sized, dataset))
    if examples == 0:
        raise ConfigurationError(f"the dataset ({kind}) is empty; there is nothing to shard")
    return examples


def _check_batch_size(batch_size: object, share: StaticShare, examples: int) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(
            f"batch_size must be a whole number of at least 1 (it is per worker), not {batch_size}"
        )
    mine = share.length(examples)
    if share.drop_last and batch_size > mine:
        smaller = f"use a batch_size of at most {mine} or " if mine else ""
        raise ConfigurationError(
            f"batch_size {batch_size} is larger than this rank's share of {mine} examples; drop_last=True would "
            f"leave no batch: {smaller}drop_last=False"
        )
