"""Clients: each worker simulates many, and runs those drawn for a round one after the other.

Partitions of the examples among them are pure functions of labels and a seed.

The settings of a script for clients are checked against its dataset and the world.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.core.clients import ClientRound, ClientTerms, Turn
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.registry import Registry
from quorate.core.settings import settings_for, written_settings
from quorate.data.arguments import check_count
from quorate.data.assignment import CLIENTS, StaticShare
from quorate.data.context import DataContext

Indices = NDArray[np.int64]
_TAG = 0x9A47


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """A division of a dataset among clients: each example on exactly one, and at least one on each."""

    needs_labels = True
    """Whether it depends on labels."""

    @abstractmethod
    def split(self, labels: Indices, clients: int, draw: np.random.Generator) -> list[Indices]:
        """Return the examples of each client, ascending; `labels` are whole numbers from 0, one for each example."""


partitions: Registry[type[Partition]] = Registry("partition")
register = partitions.register


def split(
    text: str, labels: Sequence[Any] | NDArray[Any] | None, examples: int, clients: int, *, seed: int
) -> list[Indices]:
    """Return the examples of each of `clients`; `text` is a partition with its settings, `dirichlet:alpha=0.3`.

    Equal arguments give equal partitions in every process. Raises `ConfigurationError` for an unknown partition or
    setting, for more clients than examples, and where labels are missing.
    """
    name, raw = written_settings(text, "partition")
    kind = partitions.get(name)
    chosen = kind(**settings_for(kind, raw, name))
    if not 1 <= clients <= examples:
        raise ConfigurationError(
            f"clients is {clients}; it must be a number from 1 to that of the examples, {examples}"
        )
    if labels is None and chosen.needs_labels:
        raise ConfigurationError(f'partition="{text}" needs labels, but the dataset has none; give labels=')
    numbered = np.zeros(examples, np.int64) if labels is None else np.unique(np.asarray(labels), return_inverse=True)[1]
    if len(numbered) != examples:
        raise ConfigurationError(f"labels are {len(numbered)}, and there are {examples} examples; give one for each")
    draw = np.random.default_rng([seed % 2**64, _TAG])
    return [np.sort(own) for own in chosen.split(numbered.astype(np.int64), clients, draw)]


def _sizes(examples: int, clients: int, spread: float, draw: np.random.Generator) -> Indices:
    """Return the clients' numbers of examples: as equal as possible, or log-normal with a deviation of `spread`."""
    shares = np.exp(spread * draw.standard_normal(clients)) if spread else np.ones(clients)
    ends = np.round(np.cumsum(shares) / shares.sum() * (examples - clients)).astype(np.int64)
    sizes: Indices = np.diff(ends, prepend=0) + 1
    return sizes


@register("iid")
@dataclass(frozen=True, kw_only=True)
class Identical(Partition):
    """Every client's examples are drawn alike."""

    needs_labels = False
    spread: float = 0.0
    """The deviation of the logarithm of clients' sizes; 0: all have equally many."""

    def split(self, labels: Indices, clients: int, draw: np.random.Generator) -> list[Indices]:
        ends = np.cumsum(_sizes(len(labels), clients, self.spread, draw))
        return np.split(draw.permutation(len(labels)), ends[:-1])


@register("dirichlet")
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each client has shares of labels of its own, drawn around those of the dataset (Hsu, Qi, Brown 2019, section 3).

    Client k's shares are drawn from Dirichlet(alpha p), with the dataset's shares p. By these shares its examples are
    drawn one after the other, without replacement; a label without remaining examples is left out.
    """

    alpha: float = 0.3
    """Small: few labels on each client; large: all clients alike."""
    spread: float = 0.0
    """The same as in `iid`."""

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigurationError(f"alpha is {self.alpha}; it must be above 0")

    def split(self, labels: Indices, clients: int, draw: np.random.Generator) -> list[Indices]:
        piles = [list(draw.permutation(np.flatnonzero(labels == label))) for label in range(labels.max() + 1)]
        whole = np.array([len(pile) for pile in piles], float)
        parts = []
        for size in _sizes(len(labels), clients, self.spread, draw):
            shares = draw.dirichlet(np.maximum(self.alpha * whole / whole.sum(), 1e-6))
            parts.append(np.array(_drawn(piles, shares, int(size), draw), np.int64))
        return parts


def _drawn(piles: list[list[int]], shares: NDArray[np.float64], size: int, draw: np.random.Generator) -> list[int]:
    """Draw `size` examples from the piles, by the shares of those that are not empty."""
    examples: list[int] = []
    while len(examples) < size:
        left = np.array([len(pile) for pile in piles])
        now = np.where(left > 0, shares, 0.0)
        now = now / now.sum() if now.sum() > 0 else left / left.sum()
        for label, count in enumerate(draw.multinomial(size - len(examples), now)):
            taken = min(int(count), int(left[label]))
            examples += [piles[label].pop() for _ in range(taken)]
    return examples


@register("label")
@dataclass(frozen=True, kw_only=True)
class ByLabel(Partition):
    """Each client has examples of few labels (McMahan et al., AISTATS 2017, section 3). All are sorted by label and cut
    into clients times `each` pieces of equal size, of which each client gets `each`."""

    each: int = 2
    """Pieces of each client, and so about its number of labels."""

    def split(self, labels: Indices, clients: int, draw: np.random.Generator) -> list[Indices]:
        if not 1 <= self.each <= len(labels) // clients:
            raise ConfigurationError(
                f"each is {self.each}; it must be a number from 1 to {len(labels) // clients}: {clients} clients have "
                f"{len(labels)} examples together"
            )
        mixed = draw.permutation(len(labels))
        pieces = np.array_split(mixed[np.argsort(labels[mixed], kind="stable")], clients * self.each)
        order = draw.permutation(len(pieces)).reshape(clients, self.each)
        return [np.concatenate([pieces[place] for place in own]) for own in order]


@register("group")
@dataclass(frozen=True, kw_only=True)
class ByGroup(Partition):
    """All examples of one label are on one client: a module of code, a writer, a hospital. With fewer clients than
    labels a client has several, the largest first, each to the client with the fewest examples."""

    def split(self, labels: Indices, clients: int, draw: np.random.Generator) -> list[Indices]:
        counts = np.bincount(labels)
        if clients > len(counts):
            raise ConfigurationError(
                f"clients is {clients}, and there are {len(counts)} groups; it must be at most that"
            )
        owner, held = np.zeros(len(counts), np.int64), np.zeros(clients, np.int64)
        for label in np.argsort(-counts, kind="stable"):
            owner[label] = np.argmin(held)
            held[owner[label]] += counts[label]
        return [np.flatnonzero(owner[labels] == client) for client in range(clients)]


def labels_of(dataset: Any, requested: Any) -> NDArray[Any] | None:
    """Return the label of every example: `given`, the dataset's `labels` or `targets`, or the last item of each
    example.

    None where there are none. Cost of the last: each example is read once.
    """
    for candidate in (requested, getattr(dataset, "labels", None), getattr(dataset, "targets", None)):
        if candidate is not None and len(candidate) == len(dataset):
            return np.asarray(candidate)
        if candidate is not None and candidate is requested:
            raise ConfigurationError(
                f"labels are {len(candidate)}, and there are {len(dataset)} examples; give one each"
            )
    tensors = getattr(dataset, "tensors", None)
    if tensors is not None:
        return np.asarray(tensors[-1]) if tensors[-1].dim() == 1 and len(tensors) > 1 else None
    example = dataset[0]
    if not isinstance(example, Sequence) or isinstance(example, str | Mapping) or not _is_label(example[-1]):
        return None
    return np.array([int(dataset[number][-1]) for number in range(len(dataset))])


def _is_label(item: Any) -> bool:
    try:
        return bool(int(item) == item)
    except (TypeError, ValueError, RuntimeError):
        return False


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
