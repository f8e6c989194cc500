"""Which examples a worker computes in an epoch: pure functions of (number of examples, seed, epoch, rank, size)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from quorate.core.clients import ClientRound, Turn
from quorate.core.errors import ConfigurationError
from quorate.data.claims import Claims, ReplayedClaims


def epoch_order(examples: int, *, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """The order in which an epoch goes through all examples: a permutation of 0 … examples−1 (int64).

    Drawn from seed + epoch as in torch's DistributedSampler, so it is the same on every worker and the same that a
    DDP script saw. Consequence, also torch's: (seed 0, epoch 1) and (seed 1, epoch 0) are one order. Not shuffled,
    it is 0, 1, 2, …
    """
    if not shuffle:
        return torch.arange(examples)
    return torch.randperm(examples, generator=torch.Generator().manual_seed(seed + epoch))


STATIC, DYNAMIC, OWN, CLIENTS = "static", "dynamic", "own", "clients"
REPEATED, BY_ROUND = "repeated", "by round"
"""The names of the ways to cut an epoch among workers."""


@dataclass(frozen=True, kw_only=True)
class Share(ABC):
    """How an epoch, or what is left of one, is cut among workers: which batches worker `rank` of `size` computes.

    Orders are drawn from `seed` where `shuffle`; with `drop_last` what does not divide evenly is left out.
    """

    kind: ClassVar[str]
    """Its name."""
    rank: int
    size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    @abstractmethod
    def batches(self, order: Tensor, batch_size: int, iteration: int) -> Iterator[tuple[int, list[int]]]:
        """This worker's batches of the examples in `order`, each with its number; `iteration` is the same on all
        workers, and another one every time.
        """

    @abstractmethod
    def computed(self, iteration: int, number: int) -> None:
        """This worker has computed that batch of that iteration."""

    @abstractmethod
    def number_of_batches(self, examples: int, batch_size: int) -> int:
        """How many batches this worker has in an epoch, as far as that is known beforehand."""

    def of_epoch(self, epoch: int) -> Share:
        """The share in that epoch, where it is not the same in all."""
        return self

    @property
    def is_round(self) -> bool:
        """Whether a pass is a round of clients, which ends for all workers together."""
        return False

    @property
    def client_round(self) -> ClientRound | None:
        """The round that a pass over this share is; None where it is none."""
        return None

    def turn(self, number: int) -> Turn | None:
        """Whose batch that one is, where clients are played."""
        return None

    def is_first(self, number: int) -> bool:
        """Whether no other worker counts the examples of this worker's batch of that number."""
        return True

    def length(self, examples: int) -> int:
        """How many examples this worker has in an epoch over `examples`, if all have equally many."""
        return examples // self.size if self.drop_last else math.ceil(examples / self.size)


@dataclass(frozen=True, kw_only=True)
class StaticShare(Share):
    """DDP's equal split: of each epoch's order, worker `rank` of `size` takes every `size`-th example.

    Every worker has equally many. Where the number of examples is no multiple of `size`, the order is padded by
    wrapping round (some examples come twice), or cut with `drop_last` (some do not come in this epoch).
    Equal to `torch.utils.data.DistributedSampler` index by index. Batches have numbers per worker.
    """

    kind: ClassVar[str] = STATIC

    def computed(self, iteration: int, number: int) -> None:
        """Nothing: each worker's are its own."""

    def places(self, examples: int) -> Tensor:
        """Which places of an order of `examples` this worker takes: int64 of shape (length(examples),)."""
        return (self.rank + self.size * torch.arange(self.length(examples))) % max(1, examples)

    def indices(self, examples: int, epoch: int) -> Tensor:
        """The examples of this worker in this epoch, in its order: int64 of shape (length(examples),)."""
        order = epoch_order(examples, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        return order[self.places(examples)]

    def number_of_batches(self, examples: int, batch_size: int) -> int:
        """How many batches each worker has in an epoch."""
        full, rest = divmod(self.length(examples), batch_size)
        return full + (rest > 0 and not self.drop_last)

    def batches(self, order: Tensor, batch_size: int, iteration: int = 0) -> Iterator[tuple[int, list[int]]]:
        mine = order[self.places(len(order))]
        for number in range(self.number_of_batches(len(order), batch_size)):
            yield number, mine[number * batch_size : (number + 1) * batch_size].tolist()


@dataclass(frozen=True, kw_only=True)
class DynamicShare(Share):
    """The batches go to whoever asks first, each to exactly one worker.

    `claim(iteration)` gives 0, 1, 2, … to the workers that call it, each number once. Every example comes exactly once
    (with `drop_last` what does not fill a batch is left out), and workers of unequal speed end an epoch within a step
    of each other. Batches have numbers in common.
    Cost: one question to the board per batch.
    """

    kind: ClassVar[str] = DYNAMIC
    claim: Callable[[int], int]
    claims: Claims | ReplayedClaims | None = None
    """Where `claim` comes from, if what dead workers have taken is to be dealt out again."""

    def number_of_batches(self, examples: int, batch_size: int) -> int:
        """How many batches a worker has if all are equally fast."""
        return math.ceil(self._all(examples, batch_size) / self.size)

    def batches(self, order: Tensor, batch_size: int, iteration: int) -> Iterator[tuple[int, list[int]]]:
        """The batches this worker claims, one by one; at last, those that others had claimed and died with."""
        count = self._all(len(order), batch_size)
        while (number := self.claim(iteration)) < count:
            yield number, order[number * batch_size : (number + 1) * batch_size].tolist()
        for number in self.claims.left(iteration, count) if self.claims is not None else ():
            yield number, order[number * batch_size : (number + 1) * batch_size].tolist()

    def computed(self, iteration: int, number: int) -> None:
        """This worker has computed that batch."""
        if self.claims is not None:
            self.claims.computed(iteration, number)

    def _all(self, examples: int, batch_size: int) -> int:
        return examples // batch_size if self.drop_last else math.ceil(examples / batch_size)


@dataclass(frozen=True, kw_only=True)
class OwnShare(StaticShare):
    """Every worker computes the examples that it has for itself, in the epoch's order.

    `ends` says which these are: those of worker r end before `ends[r]`. All have as many batches as the one with the
    most, the others some examples again; with `drop_last` as many as the one with the fewest. Batches have numbers per
    worker.
    """

    kind: ClassVar[str] = OWN
    ends: tuple[int, ...]

    def length(self, examples: int) -> int:
        counts = [end - begin for begin, end in zip((0, *self.ends), self.ends, strict=False)]
        return min(counts) if self.drop_last else max(counts)

    def batches(self, order: Tensor, batch_size: int, iteration: int = 0) -> Iterator[tuple[int, list[int]]]:
        begin, end = self.ends[self.rank - 1] if self.rank else 0, self.ends[self.rank]
        mine = order[(order >= begin) & (order < end)]
        mine = mine[torch.arange(self.length(len(order))) % len(mine)]
        for number in range(self.number_of_batches(len(order), batch_size)):
            yield number, mine[number * batch_size : (number + 1) * batch_size].tolist()


@dataclass(frozen=True, kw_only=True)
class RepeatedShare(StaticShare):
    """DDP's equal split, of which every worker computes its own batches and those of as many ranks behind it.

    For each batch of the equal split come `times`: the worker's own, and, one after the other, those that the ranks
    behind it have with the same number, round in a ring. Batches have numbers per worker.
    """

    kind: ClassVar[str] = REPEATED
    times: int

    def is_first(self, number: int) -> bool:
        return number % self.times == 0

    def number_of_batches(self, examples: int, batch_size: int) -> int:
        return self.times * super().number_of_batches(examples, batch_size)

    def batches(self, order: Tensor, batch_size: int, iteration: int = 0) -> Iterator[tuple[int, list[int]]]:
        of_ranks = [replace(self, rank=(self.rank + step) % self.size).places(len(order)) for step in range(self.times)]
        for number in range(self.number_of_batches(len(order), batch_size)):
            begin = number // self.times * batch_size
            yield number, order[of_ranks[number % self.times][begin : begin + batch_size]].tolist()


@dataclass(frozen=True, kw_only=True)
class ByRoundShare(RepeatedShare):
    """As `RepeatedShare`, where nobody waits for those that are late: the batches of a step follow from its round.

    `round_now()` is the newest round that this worker has applied; all workers begin a pass at the same one. Whoever
    is late leaves out what the others have gone through. Nothing is fetched ahead. Raises `ConfigurationError` where a
    batch is asked for, and no round has come since the one before.
    """

    kind: ClassVar[str] = BY_ROUND
    round_now: Callable[[], int]

    def batches(self, order: Tensor, batch_size: int, iteration: int = 0) -> Iterator[tuple[int, list[int]]]:
        every = dict(super().batches(order, batch_size, iteration))
        begun, newest = self.round_now(), -1
        while (step := self.round_now() - begun) < len(every) // self.times:
            if step <= newest:
                raise ConfigurationError(
                    "under gradient-coding a batch follows from the round of its step, and no step was made with the "
                    "one before; call optimizer.step() once for each batch, without accumulate()"
                )
            newest = step
            for number in range(step * self.times, (step + 1) * self.times):
                yield number, every[number]
