"""Clients: each worker simulates many, and runs those drawn for a round one after the other.

The settings of a script for clients are checked against its dataset and the world.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from quorate.core.clients import ClientRound, ClientTerms, Turn
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.data.arguments import check_count
from quorate.data.assignment import CLIENTS, StaticShare
from quorate.data.context import DataContext
from quorate.data.partitions import Indices, labels_of, split

_DRAWN, _ORDER = 0xC11E, 0x0DE4
"""Tags that keep the draws of one seed apart."""


@dataclass(frozen=True)
class Drawn:
    """One client that was drawn for a round."""

    client: int
    work: float
    """The part of its batches that it computes; at least one batch."""
    is_lost: bool


def drawn(terms: ClientTerms, clients: int, *, seed: int, round: int) -> list[Drawn]:
    """Return the clients of a round, ascending: the same on all workers, by the seed and the round's number. Clients of
    `dropouts` are among those of as many `stragglers`: with equal draws, lost and late clients are compared."""
    draw = np.random.default_rng([seed % 2**64, _DRAWN, round])
    if terms.is_independent:
        chosen = np.flatnonzero(draw.random(clients) < terms.sampled)
    else:
        chosen = np.sort(draw.choice(clients, max(1, round_half_up(terms.sampled * clients)), replace=False))
    luck, work = draw.random(len(chosen)), draw.random(len(chosen))
    late = luck < terms.dropouts + terms.stragglers
    parts = np.where(late, work, 1.0)
    return [
        Drawn(int(client), float(part), bool(is_lost))
        for client, part, is_lost in zip(chosen, parts, luck < terms.dropouts, strict=True)
    ]


def round_half_up(x: float) -> int:
    """Return the nearest whole number; of two the greater one."""
    return math.floor(x + 0.5)


@dataclass(frozen=True, kw_only=True)
class ClientShare(StaticShare):
    """The clients of one worker: client k is on worker k modulo `size` in every round, so its data stays there.

    Under a strategy of clients one pass of the loader is one round, in which the worker's drawn clients take turns. The
    order of a client's examples is drawn by (seed, round, client, epoch), so no client's position has to be kept. Under
    other strategies a worker has all examples of its clients in each pass. All workers have as many batches as the one
    with the most, which repeats some examples of others; with `drop_last` as many as the one with the fewest.
    """

    kind: ClassVar[str] = CLIENTS
    examples_of: tuple[Indices, ...]
    """By client."""
    batch_size: int
    terms: Callable[[], ClientTerms | None] = field(compare=False)
    """Terms of the strategy; None where it knows no clients."""
    round: int = 0

    def of_epoch(self, epoch: int) -> ClientShare:
        return replace(self, round=epoch)

    @property
    def is_round(self) -> bool:
        return self.terms() is not None

    def length(self, examples: int) -> int:
        counts = [sum(map(len, self.examples_of[rank :: self.size])) for rank in range(self.size)]
        return min(counts) if self.drop_last else max(counts)

    def number_of_batches(self, examples: int, batch_size: int) -> int:
        """Return the batches of a round: on average over workers and draws, and at least one."""
        terms = self.terms()
        if terms is None:
            return super().number_of_batches(examples, batch_size)
        each = [self._batches_of(client, terms) for client in range(len(self.examples_of))]
        return max(1, round_half_up(terms.sampled * sum(each) / self.size))

    def batches(self, order: Tensor, batch_size: int, iteration: int = 0) -> Iterator[tuple[int, list[int]]]:
        if self.is_round:
            yield from ((number, indices) for number, (_, indices) in enumerate(self._round))
            return
        own = np.concatenate([np.zeros(0, np.int64), *self.examples_of[self.rank :: self.size]])
        if not len(own):
            return
        is_own = torch.zeros(len(order), dtype=torch.bool)
        is_own[torch.from_numpy(own)] = True
        examples = order[is_own[order]]
        examples = examples[torch.arange(self.length(len(order))) % len(examples)]
        for number in range(self.number_of_batches(len(order), batch_size)):
            yield number, examples[number * batch_size : (number + 1) * batch_size].tolist()

    @property
    def client_round(self) -> ClientRound | None:
        return ClientRound(number=self.round, clients=len(self.examples_of)) if self.is_round else None

    def turn(self, number: int) -> Turn | None:
        return self._round[number][0] if self.is_round else None

    @cached_property
    def _round(self) -> list[tuple[Turn, list[int]]]:
        """The batches of this worker in this round, each with the turn of its client."""
        terms = self.terms()
        assert terms is not None, "a round has terms"
        everyone = drawn(terms, len(self.examples_of), seed=self.seed, round=self.round)
        own = [client for client in everyone if client.client % self.size == self.rank]
        players = len({client.client % self.size for client in everyone})
        batches = []
        for client in own:
            turn = Turn(
                round=self.round,
                client=client.client,
                clients=len(self.examples_of),
                drawn=len(everyone),
                players=players,
                own=len(own),
                is_lost=client.is_lost,
            )
            lists = list(self._lists(client, terms))
            batches += [(replace(turn, is_last=place == len(lists) - 1), batch) for place, batch in enumerate(lists)]
        return batches

    def _lists(self, client: Drawn, terms: ClientTerms) -> Iterator[list[int]]:
        count = self._batches_of(client.client, terms)
        left = count if client.work == 1.0 else max(1, math.floor(client.work * count))
        for epoch in range(terms.epochs):
            for batch in self._epoch(client.client, epoch):
                if not left:
                    return
                left -= 1
                yield batch

    def _epoch(self, client: int, epoch: int) -> Iterator[list[int]]:
        indices = self.examples_of[client]
        if self.shuffle:
            indices = np.random.default_rng([self.seed % 2**64, _ORDER, self.round, client, epoch]).permutation(indices)
        for begin in range(0, self._full(len(indices)), self.batch_size):
            yield indices[begin : begin + self.batch_size].tolist()

    def _full(self, examples: int) -> int:
        """Return how many of a client's examples are in an epoch; one with fewer than a batch keeps all."""
        return examples - examples % self.batch_size if self.drop_last and examples > self.batch_size else examples

    def _batches_of(self, client: int, terms: ClientTerms) -> int:
        count = terms.epochs * math.ceil(self._full(len(self.examples_of[client])) / self.batch_size)
        return count if terms.steps is None else min(count, terms.steps)


@dataclass(frozen=True)
class ClientSplit:
    """A dataset on clients, before the split, which needs the seed."""

    partition: str
    clients: int
    labels: Any
    examples: int

    @property
    def checksum(self) -> str | None:
        """The checksum of the labels; None where the partition needs no labels."""
        return None if self.labels is None else f"(checksum {zlib.crc32(self.labels.tobytes()):08x})"

    def share(
        self, wire: Wire, context: DataContext, batch_size: int, *, seed: int, shuffle: bool, drop_last: bool
    ) -> ClientShare:
        """Return the share of the worker of `wire`."""
        size, own = wire.size, wire.rank if context.replaced_rank is None else context.replaced_rank
        return ClientShare(
            rank=own % size,
            size=size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            examples_of=tuple(split(self.partition, self.labels, self.examples, self.clients, seed=seed)),
            batch_size=batch_size,
            terms=lambda: _terms(context),
        )


def clients_from(
    partition: str | None,
    clients: int | None,
    dataset: Any,
    labels: Any,
    workers: int,
    context: DataContext,
    *,
    share: str | None,
    files: bool,
) -> ClientSplit | None:
    """Return the clients requested from `loader`; None without any. Raises `ConfigurationError` for arguments that
    exclude each other."""
    if partition is None and clients is None:
        if labels is not None:
            raise ConfigurationError('labels= needs partition=, such as partition="label"')
        return None
    for is_set, name in ((share is not None, "share="), (files, 'files(..., read="own")')):
        if is_set:
            raise ConfigurationError(
                f"clients have examples of their own, so {name} cannot be combined with partition="
            )
    if context.deals is not None:
        raise ConfigurationError(
            "clients need whole replicas, but this model is divided along a mesh; use one worker per replica"
        )
    if context.redundancy.is_there:
        raise ConfigurationError(
            "clients have examples of their own, and under draco, detox and gradient-coding several workers compute "
            "the same batches; leave out partition= and clients="
        )
    if context.division is not None:
        raise ConfigurationError(
            'clients have examples of their own, and batch="kept" divides the batches of the dead among the others; '
            "leave out partition= and clients="
        )
    if clients is not None:
        check_count("clients", clients)
    text = "iid" if partition is None else partition
    label_array = None if text.startswith("iid") else labels_of(dataset, labels)
    count = clients
    if count is None:
        count = len(set(label_array.tolist())) if text == "group" and label_array is not None else workers
    return ClientSplit(text, count, label_array, len(dataset))


def _terms(context: DataContext) -> ClientTerms | None:
    if context.bypassed is not None:
        raise ConfigurationError(
            f"a world of one worker leaves {context.bypassed} out, and its clients with it; give quorate.distribute "
            'with_one_worker="algorithm" to play clients in one process'
        )
    return context.client_terms
