"""Graphs that are the same in every round.

`path` and `binary-tree` have no circles, as `relay` requires: a message has one path to each worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from quorate.core.draws import mixed
from quorate.core.errors import ConfigurationError
from quorate.gossip.topology import register
from quorate.gossip.topology.edges import Directed, Undirected, hops


@register("complete")
@dataclass(frozen=True, kw_only=True)
class Complete(Undirected):
    """All workers are neighbours: one round gives the exact mean, for P - 1 messages of each worker."""

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        return frozenset(range(size)) - {rank}


@register("ring")
@dataclass(frozen=True, kw_only=True)
class Ring(Undirected):
    """A circle: every worker has two neighbours. The spectral gap falls with P², so use it for few workers."""

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        return frozenset({(rank - 1) % size, (rank + 1) % size}) - {rank}


@register("torus")
@dataclass(frozen=True, kw_only=True)
class Torus(Undirected):
    """A grid closed at its edges, as square as possible: every worker has four neighbours."""

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        rows = next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)
        columns = size // rows
        row, column = divmod(rank, columns)
        neighbours = {
            (row * columns) + (column - 1) % columns,
            (row * columns) + (column + 1) % columns,
            ((row - 1) % rows) * columns + column,
            ((row + 1) % rows) * columns + column,
        }
        return frozenset(neighbours) - {rank}


@register("star")
@dataclass(frozen=True, kw_only=True)
class Star(Undirected):
    """Rank 0 is the only neighbour of all others, a bottleneck like that of a server; for comparison."""

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        return frozenset(range(1, size)) if rank == 0 else frozenset({0})


@register("wheel")
@dataclass(frozen=True, kw_only=True)
class Wheel(Undirected):
    """A ring of all ranks but 0, and rank 0 as the neighbour of all."""

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        if rank == 0:
            return frozenset(range(1, size))
        rim = size - 1
        return frozenset({0, 1 + (rank - 2) % rim, 1 + rank % rim}) - {rank}


@register("path")
@dataclass(frozen=True, kw_only=True)
class Path(Undirected):
    """All workers in a line, each with the next."""

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        return frozenset({rank - 1, rank + 1}) & frozenset(range(size))


@register("binary-tree")
@dataclass(frozen=True, kw_only=True)
class BinaryTree(Undirected):
    """Rank 0 at the top, two ranks below each: at most 2 log2 P edges between two workers."""

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        below = {child for child in (2 * rank + 1, 2 * rank + 2) if child < size}
        return frozenset(below | ({(rank - 1) // 2} if rank else set()))


@register("exponential")
@dataclass(frozen=True, kw_only=True)
class Exponential(Directed):
    """Every worker sends to the ranks 1, 2, 4 ... ahead in every round; the spectral gap is 2 / (1 + log2 P)."""

    def reached(self, rank: int, size: int, round: int) -> frozenset[int]:
        return frozenset((rank + hop) % size for hop in hops(size)) - {rank}

    def reaching(self, rank: int, size: int, round: int) -> frozenset[int]:
        return frozenset((rank - hop) % size for hop in hops(size)) - {rank}


@register("random")
@dataclass(frozen=True, kw_only=True)
class Random(Undirected):
    """A random connected graph."""

    degree: int = 4
    """Mean number of neighbours of a worker, at most the number of other workers."""
    seed: int = 0
    """Seed of the random graph."""

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ConfigurationError(f"degree is {self.degree}; it must be at least 1")

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        return _drawn(self.seed, self.degree, size)[rank]


@lru_cache(maxsize=64)
def _drawn(seed: int, degree: int, size: int) -> tuple[frozenset[int], ...]:
    """Draw a tree, so that the graph is connected, then edges until there are size x degree / 2, or all."""
    edges: set[tuple[int, int]] = set()
    for rank in range(1, size):
        edges.add((mixed(seed, 1, rank) % rank, rank))
    wanted = min(size * (size - 1) // 2, round(size * degree / 2))
    tries = 0
    while len(edges) < wanted:
        a, b = mixed(seed, 2, tries, 0) % size, mixed(seed, 2, tries, 1) % size
        tries += 1
        if a != b:
            edges.add((min(a, b), max(a, b)))
    names = list(range(size))
    for place in range(size - 1, 0, -1):
        other = mixed(seed, 3, place) % (place + 1)
        names[place], names[other] = names[other], names[place]
    neighbours: list[set[int]] = [set() for _ in range(size)]
    for a, b in edges:
        neighbours[names[a]].add(names[b])
        neighbours[names[b]].add(names[a])
    return tuple(map(frozenset, neighbours))
