"""Partitions of the examples among clients of federated training. Pure functions of labels and a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quorate.core.errors import ConfigurationError
from quorate.core.registry import Registry
from quorate.core.settings import settings_for, written_settings

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
