"""A DataLoader over one worker's share of the data, which counts its epochs itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import Share
from quorate.data.consumption import consumed, is_training
from quorate.data.limit import LIMIT, Limit
from quorate.wire.current import Place

RESTS = "rests"
"""The key in `Place.kept` of what is called, in order, when a loader has given its last batch before the others'."""


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
    """A batch sampler: the index lists of one worker's share of epoch `epoch`, whose lengths it leaves in `sizes`.

    Iterating it draws the order at once, not at the first batch, so that iterators begun one after the other have
    the epochs in which they began.
    """

    def __init__(self, share: Share, examples: int, batch_size: int) -> None:
        self.share = share
        self.examples = examples
        self.batch_size = batch_size
        self.epoch = self.begun = 0
        self.sizes: deque[int] = deque()

    def __len__(self) -> int:
        return self.share.number_of_batches(self.examples, self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.share.batches(self.examples, self.epoch, self.batch_size, self.begun)
        self.begun += 1
        sizes: deque[int] = deque()
        self.sizes = sizes
        return _noting(batches, sizes)


def _noting(batches: Iterator[list[int]], sizes: deque[int]) -> Iterator[list[int]]:
    for indices in batches:
        sizes.append(len(indices))
        yield indices


class Loader:
    """One worker's batches: iterating it the e-th time (from 0) gives epoch e, in that epoch's order.

    Every worker's loader has the same length (under a dynamic share: the same estimate of it). An iteration counts as
    an epoch when it begins, also if it is left early. With `rests`, its end is reached by all workers together: those
    that get there first take part in the others' means without weight. Wraps a torch DataLoader (`torch_loader`)
    rather than being one: its sampler is not the user's to change.

    Raises `ConfigurationError` for a batch size below 1, data that is empty or has no length, and, with
    `drop_last`, a batch larger than the share.
    """

    def __init__(
        self, dataset: Dataset[Any], batch_size: int, share: Share, loading: Loading, place: Place, *, rests: bool
    ) -> None:
        examples = _number_of_examples(dataset)
        _check_batch_size(batch_size, share, examples)
        self.dataset = dataset
        self.batch_size = batch_size
        self.share = share
        self._place = place
        self._rests = rests
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
        batches = iter(self.torch_loader)
        return self._given(batches, self._batches.sizes)

    def _given(self, batches: Iterator[Any], sizes: deque[int]) -> Iterator[Any]:
        """The batches, counted, until there are no more or time is up."""
        place = self._place
        clock, taken = place.wire.clock, consumed(place)
        limit: Limit | None = place.kept.get(LIMIT)
        while True:
            trains = is_training(place)
            if trains and limit is not None and limit.is_reached():
                break
            begin = clock.now()
            try:
                batch = next(batches)
            except StopIteration:
                break
            size = sizes.popleft()
            if trains:
                taken.note(clock.now() - begin, size, batch)
            yield batch
        if self._rests and trains:
            for rest in tuple(place.kept.get(RESTS, ())):
                rest()

    def __len__(self) -> int:
        """Batches per epoch of this worker, the same on all workers; under a dynamic share, if all are equally fast."""
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


def _check_batch_size(batch_size: object, share: Share, examples: int) -> None:
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
