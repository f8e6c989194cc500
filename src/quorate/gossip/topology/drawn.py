"""A random graph, drawn once, the same on all workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from quorate.core.draws import mixed
from quorate.core.errors import ConfigurationError
from quorate.gossip.topology import register
from quorate.gossip.topology.edges import Undirected


@register("random")
@dataclass(frozen=True, kw_only=True)
class Random(Undirected):
    """A random connected graph."""

    degree: int = 4
    """Mean number of neighbours of a worker, at most all others."""
    seed: int = 0
    """Seed of the draw."""

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
