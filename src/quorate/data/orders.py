"""The order of each epoch: that of a seed, or as samplers draw it, the same on all workers."""

from __future__ import annotations

import random
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import Share, epoch_order

_UNSEEN = -1


@dataclass(frozen=True)
class Drawn:
    """The order of one epoch."""

    order: Tensor
    """Examples, int64 (entries). With `batches` these are places in that list."""
    batches: Sequence[list[int]] | None = None
    """The examples of each batch, where batches are drawn and not examples."""


class EpochOrder(ABC):
    """Draws the order of every epoch."""

    entries: int
    """Examples, or batches, of an epoch."""
    has_batches = False
    """Whether it draws batches."""

    @abstractmethod
    def draw(self, epoch: int) -> Drawn:
        """Return the order of an epoch; the same for the same number."""


@dataclass(frozen=True)
class SeededOrder(EpochOrder):
    """The order of DDP's DistributedSampler."""

    entries: int
    share: Share

    def draw(self, epoch: int) -> Drawn:
        return Drawn(epoch_order(self.entries, seed=self.share.seed, epoch=epoch, shuffle=self.share.shuffle))


class SampledOrder(EpochOrder):
    """The order that a sampler draws, or the batches that a batch sampler draws.

    Epochs are drawn one after the other, each with all generators seeded by the seed and its number. So the order of an
    epoch is the same on every worker, and after resuming. Epochs that were left out are drawn too, as the sampler may
    have a state; one with `set_epoch` has none.
    """

    def __init__(self, sampler: Any, examples: int, seed: int, *, has_batches: bool) -> None:
        self._sampler, self._examples, self._seed, self.has_batches = sampler, examples, seed, has_batches
        self._generators = [(generator, generator.initial_seed()) for generator in _generators_of(sampler)]
        self._set_epochs = [part.set_epoch for part in _parts_of(sampler) if callable(getattr(part, "set_epoch", None))]
        self._newest, self._drawn = _UNSEEN, Drawn(torch.empty(0))
        self.entries = len(self.draw(0).order)
        if self.entries == 0:
            raise ConfigurationError(f"{self._name} is empty: it draws nothing in its first epoch")

    @property
    def _name(self) -> str:
        return f"the {'batch sampler' if self.has_batches else 'sampler'} ({type(self._sampler).__name__})"

    def draw(self, epoch: int) -> Drawn:
        """Return the order of an epoch. Raises `ConfigurationError` where it is no order of the dataset's examples, or
        has another length than the first epoch."""
        if epoch < self._newest:
            self._newest = epoch - 1
        first = epoch if self._set_epochs else self._newest + 1
        for number in range(first, epoch + 1):
            self._drawn = self._draw(number)
        self._newest = epoch
        return self._drawn

    def _draw(self, epoch: int) -> Drawn:
        for set_epoch in self._set_epochs:
            set_epoch(epoch)
        for generator, seed in self._generators:
            generator.manual_seed(seed + epoch)
        with _seeded(self._seed + epoch):
            entries = list(self._sampler)
        batches = [_numbers(entry) for entry in entries] if self.has_batches else None
        order = (
            torch.arange(len(entries)) if batches is not None else torch.tensor(_numbers(entries), dtype=torch.int64)
        )
        self._check(order if batches is None else torch.tensor([n for each in batches for n in each]), epoch)
        if self._newest != _UNSEEN and len(order) != self.entries:
            raise ConfigurationError(
                f"{self._name} drew {len(order)} entries in epoch {epoch} and {self.entries} in the first; an epoch's "
                "steps must be equally many in every epoch"
            )
        return Drawn(order, batches)

    def _check(self, numbers: Tensor, epoch: int) -> None:
        wrong = numbers[(numbers < 0) | (numbers >= self._examples)]
        if len(wrong):
            raise ConfigurationError(
                f"{self._name} drew the index {int(wrong[0])} in epoch {epoch}, and the dataset has {self._examples} "
                "examples"
            )

    @property
    def checksum(self) -> int:
        """The checksum of the first epoch."""
        drawn = self._drawn
        return zlib.crc32(repr(drawn.order.tolist() if drawn.batches is None else drawn.batches).encode())


class BucketedBatches:
    """Batches of examples of similar length, each of at most `tokens` tokens with padding, in a random order.

    Examples are sorted by length, equal ones at random, and cut greedily. So every epoch has equally many batches. An
    example that is longer than `tokens` is a batch of its own.
    """

    def __init__(self, lengths: Sequence[int], tokens: int, *, shuffle: bool) -> None:
        self._lengths, self._tokens, self._shuffle = torch.as_tensor(lengths, dtype=torch.int64), tokens, shuffle

    def __iter__(self) -> Iterator[list[int]]:
        count = len(self._lengths)
        mixed = torch.randperm(count) if self._shuffle else torch.arange(count)
        order = mixed[self._lengths[mixed].argsort(stable=True)]
        batches: list[list[int]] = [[]]
        for index, length in zip(order.tolist(), self._lengths[order].tolist(), strict=True):
            if batches[-1] and length * (len(batches[-1]) + 1) > self._tokens:
                batches.append([])
            batches[-1].append(index)
        places = torch.randperm(len(batches)) if self._shuffle else torch.arange(len(batches))
        return iter([batches[place] for place in places.tolist()])


def _numbers(entries: Any) -> list[int]:
    try:
        return [int(entry) for entry in entries]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"a sampler draws indices, whole numbers from 0; {error}") from None


def _parts_of(sampler: Any) -> list[Any]:
    """Return a sampler, and those inside it: batch samplers have one."""
    parts = [sampler]
    while (inside := getattr(parts[-1], "sampler", None)) is not None and len(parts) < 10:
        parts.append(inside)
    return parts


def _generators_of(sampler: Any) -> list[torch.Generator]:
    of_parts = (getattr(part, "generator", None) for part in _parts_of(sampler))
    return [generator for generator in of_parts if isinstance(generator, torch.Generator)]


def ranks_of(sampler: Any) -> tuple[int, int] | None:
    """Return the rank and the number of workers for which a sampler draws, as DistributedSampler does; None if it draws
    for all."""
    for part in _parts_of(sampler):
        rank, size = getattr(part, "rank", None), getattr(part, "num_replicas", None)
        if isinstance(rank, int) and isinstance(size, int):
            return rank, size
    return None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python inside, and put them back."""
    of_numpy, of_python = np.random.get_state(legacy=False), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


def lengths_of(dataset: Any, lengths: Sequence[int] | Tensor | Callable[[Any], int] | None) -> list[int]:
    """Return the length of each example: as listed, computed from each, or the dataset's `lengths`. Raises
    `ConfigurationError` where they are not whole numbers of at least 1."""
    listed: Any = getattr(dataset, "lengths", None) if lengths is None else lengths
    if listed is None:
        raise ConfigurationError(
            "tokens_per_batch needs the length of each example: pass lengths=, a list or a function of an example"
        )
    every = [listed(dataset[index]) for index in range(len(dataset))] if callable(listed) else listed
    with suppress(TypeError, ValueError):
        numbers = [int(length) for length in every]
        if len(numbers) == len(dataset) and min(numbers, default=1) >= 1:
            return numbers
    raise ConfigurationError(f"lengths must be {len(dataset)} whole numbers of at least 1, one for each example")
