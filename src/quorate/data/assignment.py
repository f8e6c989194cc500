"""The examples that a worker computes in an epoch: pure functions of (number of examples, seed, epoch, rank, size).

Batches that workers claim through the board are the exception; those of dead workers can be claimed again.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from quorate.core.clients import ClientRound, Turn
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.data.step_division import StepDivision
from quorate.records.rows import Claim
from quorate.records.tape import Replaying


def epoch_order(examples: int, *, seed: int, epoch: int, shuffle: bool = True) -> Tensor:
    """Return the order of all examples in an epoch: a permutation of 0 … examples−1 (int64).

    Drawn from seed + epoch as in torch's DistributedSampler, so it is the same on every worker, and equal to that of a
    DDP script. Consequence, as in torch: (seed 0, epoch 1) and (seed 1, epoch 0) are one order. Not shuffled, it is
    0, 1, 2, …
    """
    if not shuffle:
        return torch.arange(examples)
    return torch.randperm(examples, generator=torch.Generator().manual_seed(seed + epoch))


STATIC, DYNAMIC, OWN, CLIENTS, SAMPLED = "static", "dynamic", "own", "clients", "sampled"
REPEATED, BY_ROUND, KEPT = "repeated", "by round", "kept"
"""The names of the divisions of an epoch among workers."""


@dataclass(frozen=True, kw_only=True)
class Share(ABC):
    """A division of an epoch, or of its remainder, among workers: the batches of worker `rank` of `size`. Orders are
    drawn from `seed` if `shuffle`; with `drop_last`, examples that do not divide evenly are left out."""

    kind: ClassVar[str]
    """Its name."""
    rank: int
    size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    @abstractmethod
    def batches(self, order: Tensor, batch_size: int, iteration: int) -> Iterator[tuple[int, list[int]]]:
        """Yield this worker's batches of the examples in `order`, each with its number. `iteration` is the same on all
        workers, and different every time."""

    @abstractmethod
    def computed(self, iteration: int, number: int) -> None:
        """Note that this worker has computed that batch of that iteration."""

    @abstractmethod
    def number_of_batches(self, examples: int, batch_size: int) -> int:
        """Return how many batches this worker has in an epoch, as far as that is known beforehand."""

    def of_epoch(self, epoch: int) -> Share:
        """Return the share in that epoch, if it changes between epochs."""
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
        """Return the turn of the client whose batch that is, where clients are simulated."""
        return None

    def is_first(self, number: int) -> bool:
        """Return whether no other worker counts the examples of this worker's batch of that number."""
        return True

    def length(self, examples: int) -> int:
        """Return how many examples this worker has in an epoch over `examples`, if all have equally many."""
        return examples // self.size if self.drop_last else math.ceil(examples / self.size)


@dataclass(frozen=True, kw_only=True)
class StaticShare(Share):
    """DDP's equal split: of each epoch's order, worker `rank` of `size` takes every `size`-th example.

    Every worker has equally many. If the number of examples is no multiple of `size`, the order is padded by wrapping
    round (some examples appear twice). With `drop_last` it is cut, and some examples do not appear in this epoch. Equal
    to `torch.utils.data.DistributedSampler` index by index. Batches have numbers per worker.
    """

    kind: ClassVar[str] = STATIC

    def computed(self, iteration: int, number: int) -> None:
        """Do nothing: each worker has batches of its own."""

    def places(self, examples: int) -> Tensor:
        """Return the places of an order of `examples` that this worker takes: int64 of shape (length(examples),)."""
        return (self.rank + self.size * torch.arange(self.length(examples))) % max(1, examples)

    def indices(self, examples: int, epoch: int) -> Tensor:
        """Return the examples of this worker in this epoch, in its order: int64 of shape (length(examples),)."""
        order = epoch_order(examples, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        return order[self.places(examples)]

    def number_of_batches(self, examples: int, batch_size: int) -> int:
        """Return how many batches each worker has in an epoch."""
        full, rest = divmod(self.length(examples), batch_size)
        return full + (rest > 0 and not self.drop_last)

    def batches(self, order: Tensor, batch_size: int, iteration: int = 0) -> Iterator[tuple[int, list[int]]]:
        indices = order[self.places(len(order))]
        for number in range(self.number_of_batches(len(order), batch_size)):
            yield number, indices[number * batch_size : (number + 1) * batch_size].tolist()


@dataclass(frozen=True, kw_only=True)
class DynamicShare(Share):
    """Batches go to the worker that asks first, each to exactly one.

    `claim(iteration)` returns 0, 1, 2, … to the workers that call it, each number once. Every example appears exactly
    once (with `drop_last` an incomplete batch is left out), and workers of unequal speed end an epoch within a step of
    each other. Batches have numbers in common. Cost: one request to the board per batch.
    """

    kind: ClassVar[str] = DYNAMIC
    claim: Callable[[int], int]
    claims: Claims | ReplayedClaims | None = None
    """The object of `claim`, if batches of dead workers are to be assigned again."""

    def number_of_batches(self, examples: int, batch_size: int) -> int:
        """Return how many batches a worker has if all are equally fast."""
        return math.ceil(self._all(examples, batch_size) / self.size)

    def batches(self, order: Tensor, batch_size: int, iteration: int) -> Iterator[tuple[int, list[int]]]:
        """Yield the batches that this worker claims, and at the end those that dead workers had claimed."""
        count = self._all(len(order), batch_size)
        while (number := self.claim(iteration)) < count:
            yield number, order[number * batch_size : (number + 1) * batch_size].tolist()
        for number in self.claims.left(iteration, count) if self.claims is not None else ():
            yield number, order[number * batch_size : (number + 1) * batch_size].tolist()

    def computed(self, iteration: int, number: int) -> None:
        """Note that this worker has computed that batch."""
        if self.claims is not None:
            self.claims.computed(iteration, number)

    def _all(self, examples: int, batch_size: int) -> int:
        return examples // batch_size if self.drop_last else math.ceil(examples / batch_size)


@dataclass(frozen=True, kw_only=True)
class KeptShare(StaticShare):
    """DDP's equal split, whose batches go step by step to the workers that live, as `division` says.

    Batches have the numbers of the division. A pass without training is that of `StaticShare`.
    """

    kind: ClassVar[str] = KEPT
    division: StepDivision

    def batch(self, order: Tensor, batch_size: int, number: int) -> list[int]:
        """Return the examples of one batch."""
        batch, part = divmod(self.of_all(number), self.size)
        end = min((batch + 1) * batch_size, self.length(len(order)))
        places = (part + self.size * torch.arange(batch * batch_size, end)) % max(1, len(order))
        indices: list[int] = order[places].tolist()
        return indices

    def of_all(self, number: int) -> int:
        """Return the number of a batch among those of all parts of the epoch."""
        batch, worker = divmod(number, self.division.workers)
        return batch * self.size + self.division.parts[worker]


@dataclass(frozen=True, kw_only=True)
class OwnShare(StaticShare):
    """Every worker computes the examples that only it has, in the epoch's order.

    Those of worker r end before `ends[r]`. All have as many batches as the worker with the most, which repeats some
    examples of the others; with `drop_last` as many as the one with the fewest. Batches have numbers per worker.
    """

    kind: ClassVar[str] = OWN
    ends: tuple[int, ...]

    def length(self, examples: int) -> int:
        counts = [end - begin for begin, end in zip((0, *self.ends), self.ends, strict=False)]
        return min(counts) if self.drop_last else max(counts)

    def batches(self, order: Tensor, batch_size: int, iteration: int = 0) -> Iterator[tuple[int, list[int]]]:
        begin, end = self.ends[self.rank - 1] if self.rank else 0, self.ends[self.rank]
        indices = order[(order >= begin) & (order < end)]
        indices = indices[torch.arange(self.length(len(order))) % len(indices)]
        for number in range(self.number_of_batches(len(order), batch_size)):
            yield number, indices[number * batch_size : (number + 1) * batch_size].tolist()


@dataclass(frozen=True, kw_only=True)
class SampledShare(StaticShare):
    """Every worker computes all that its own sampler draws, as DistributedSampler does."""

    kind: ClassVar[str] = SAMPLED

    def length(self, examples: int) -> int:
        return examples

    def places(self, examples: int) -> Tensor:
        return torch.arange(examples)


@dataclass(frozen=True, kw_only=True)
class RepeatedShare(StaticShare):
    """DDP's equal split, of which every worker computes its own batches and those of the next ranks.

    For each batch of the equal split a worker has `times`: its own, and then those with the same number of the ranks
    after it, in a ring. Batches have numbers per worker.
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
    """`RepeatedShare` for strategies that do not wait for late workers: the batches of a step follow from its
    round.

    `round_now()` is the newest round that this worker has applied; all workers begin a pass at the same one. A late
    worker leaves out the batches of rounds that have ended. Nothing is prefetched. Raises `ConfigurationError` where a
    batch is requested, and no round was applied since the one before.
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


Claimed = Callable[[Claim], None]
"""Called with every batch."""


class Claims:
    """One worker's claims of the batches of loader `loader`.

    Where training goes on after a death (`tolerates_death`), the board holds the batches that each worker has claimed
    and not computed yet. Other workers can claim those of a worker that dies. Cost: one request to the board per batch,
    two in that case.
    """

    def __init__(
        self, wire: Wire, loader: int, tolerates_death: Callable[[], bool], claimed: Claimed = lambda row: None
    ) -> None:
        self._wire, self._key, self._tolerates_death = wire, f"loader/{loader}", tolerates_death
        self._loader, self._claimed = loader, claimed
        self._open: dict[int, list[int]] = {}

    def claim(self, iteration: int) -> int:
        """Return the next number, which no other worker gets."""
        number = self._wire.board.add(f"{self._key}/{iteration}") - 1
        self._take(iteration, number)
        self._claimed(Claim(loader=self._loader, iteration=iteration, batch=number))
        return number

    def _take(self, iteration: int, number: int) -> None:
        if self._tolerates_death():
            open_batches = self._open.setdefault(iteration, [])
            open_batches.append(number)
            self._wire.board.set(self._place(iteration, self._wire.rank), json.dumps(open_batches).encode())

    def computed(self, iteration: int, number: int) -> None:
        """Note that this worker has computed a batch; the next claim writes it to the board."""
        open_batches = self._open.get(iteration, [])
        if number in open_batches:
            open_batches.remove(number)

    def left(self, iteration: int, count: int) -> Iterator[int]:
        """Yield, of the `count` batches, those that dead workers have claimed and not computed; each goes to one
        worker."""
        board = self._wire.board
        for rank in sorted(self._wire.dead) if self._tolerates_death() else ():
            for number in json.loads(board.get(self._place(iteration, rank)) or b"[]"):
                again = f"{self._key}/again/{iteration}/{number} of {rank}"
                if number < count and board.swap(again, None, b"%d" % self._wire.rank):
                    self._take(iteration, number)
                    self._claimed(Claim(loader=self._loader, iteration=iteration, batch=number, of=rank))
                    yield number

    def _place(self, iteration: int, rank: int) -> str:
        return f"{self._key}/open/{iteration}/{rank}"


class ReplayedClaims:
    """`Claims` from records: the batches of worker `rank`. If it died, it calls `ends` after the last."""

    def __init__(self, replaying: Replaying, rank: int, loader: int) -> None:
        assert replaying.tape is not None
        self._tape, self._ends, self._rank, self._loader = replaying.tape, replaying.ends, rank, loader
        self._left: dict[int, Iterator[int]] = {}

    def claim(self, iteration: int) -> int:
        """Return the next batch in the records."""
        own = (row.batch for row in self._of(iteration) if row.of is None)
        batch = next(self._left.setdefault(iteration, own), None)
        if batch is None and self._rank in self._tape.dead:
            for end in self._ends:
                end()
        if batch is None:
            raise ConfigurationError(
                f"the records have no further batch for rank {self._rank} in iteration {iteration} of loader "
                f"{self._loader}: the script does something else than the recorded run did"
            )
        return batch

    def _of(self, iteration: int) -> Sequence[Claim]:
        return self._tape.claims_of(self._rank, self._loader, iteration)

    def computed(self, iteration: int, number: int) -> None:
        """Do nothing: the records have the batches that were claimed again."""

    def left(self, iteration: int, count: int) -> Iterator[int]:
        """Yield the batches of dead workers that the records have for this worker."""
        yield from (row.batch for row in self._of(iteration) if row.of is not None)
