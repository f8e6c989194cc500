"""Edges of graphs: their weights, and the graph among the survivors when workers have died."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorate.core.errors import ConfigurationError
from quorate.core.topology import Edge, Topology


class _Graph:
    """Defaults of a graph: it exists for every number of workers, and every round has the same edges."""

    is_balanced: ClassVar[bool] = True

    def check(self, size: int) -> None:
        """See `core.topology.Topology`."""

    def cycle(self, size: int) -> int:
        """Return 1: every round has the same edges."""
        return 1


@dataclass(frozen=True, kw_only=True)
class Undirected(_Graph, ABC):
    """A graph whose edges lead both ways, with Metropolis weights: W[i, j] = 1 / (1 + max(degree of i, degree of j)).

    A worker's own weight is the rest to 1. So W is symmetric, and its rows and columns add up to 1 for every graph
    (Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004).
    """

    directed: ClassVar[bool] = False

    @abstractmethod
    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        """Return the neighbours of `rank`, without itself."""

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        peers = self.neighbours(rank, size, round)
        edges = [
            Edge(peer, 1.0 / (1 + max(len(peers), len(self.neighbours(peer, size, round))))) for peer in sorted(peers)
        ]
        return (Edge(rank, 1.0 - sum(edge.weight for edge in edges)), *edges)

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self.out_edges(rank, size, round)


@dataclass(frozen=True, kw_only=True)
class Directed(_Graph, ABC):
    """A graph whose edges lead one way: every worker gives itself and those it reaches equal shares of its numbers.

    The columns of W add up to 1. Its rows do if every worker has as many incoming as outgoing edges (`is_balanced`).
    """

    directed: ClassVar[bool] = True

    @abstractmethod
    def reached(self, rank: int, size: int, round: int) -> frozenset[int]:
        """Return the ranks that `rank` sends to, without itself."""

    @abstractmethod
    def reaching(self, rank: int, size: int, round: int) -> frozenset[int]:
        """Return the ranks that send to `rank`, without itself."""

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        peers = self.reached(rank, size, round)
        share = 1.0 / (1 + len(peers))
        return (Edge(rank, share), *(Edge(peer, share) for peer in sorted(peers)))

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        own = Edge(rank, 1.0 / (1 + len(self.reached(rank, size, round))))
        others = sorted(self.reaching(rank, size, round))
        return (own, *(Edge(peer, 1.0 / (1 + len(self.reached(peer, size, round)))) for peer in others))


def hops(size: int) -> list[int]:
    """Return 1, 2, 4 ... below `size`; an empty list for one worker."""
    return [1 << k for k in range(max(0, size - 1).bit_length())]


def among(graph: Topology, size: int, members: Sequence[int]) -> Topology:
    """Return `graph`, which was checked for `size` workers, among `members` of them (in order of rank).

    The graph is laid out again for the number of members, which keep their ranks: a ring closes over the dead.
    A graph that does not exist for this number (one from a file, or pairs of an odd number) loses the edges of the
    dead instead. Each worker keeps the weight of its lost edges, so columns still add up to 1, and a symmetric W stays
    symmetric.
    """
    if len(members) == size:
        return graph
    try:
        graph.check(len(members))
    except ConfigurationError:
        return _WithoutDead(graph, members)
    return _LaidOutAgain(graph, members)


class _Among:
    """A graph among some of the workers that it was checked for."""

    def __init__(self, graph: Topology, members: Sequence[int]) -> None:
        self.graph, self.members = graph, members
        self.directed, self.is_balanced = graph.directed, graph.is_balanced

    def check(self, size: int) -> None:
        """See `core.topology.Topology`: the graph was checked before."""


class _LaidOutAgain(_Among):
    def cycle(self, size: int) -> int:
        return self.graph.cycle(len(self.members))

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self._with_ranks_of_members(self.graph.out_edges(self.members.index(rank), len(self.members), round))

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self._with_ranks_of_members(self.graph.in_edges(self.members.index(rank), len(self.members), round))

    def _with_ranks_of_members(self, edges: Sequence[Edge]) -> tuple[Edge, ...]:
        return tuple(Edge(self.members[peer], weight) for peer, weight in edges)


class _WithoutDead(_Among):
    def __init__(self, graph: Topology, members: Sequence[int]) -> None:
        super().__init__(graph, members)
        self.survivors = frozenset(members)
        self.is_balanced = graph.is_balanced and not graph.directed

    def cycle(self, size: int) -> int:
        return self.graph.cycle(size)

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        others = [edge for edge in self.graph.out_edges(rank, size, round)[1:] if edge.peer in self.survivors]
        return (Edge(rank, 1.0 - sum(edge.weight for edge in others)), *others)

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        others = [edge for edge in self.graph.in_edges(rank, size, round)[1:] if edge.peer in self.survivors]
        return (self.out_edges(rank, size, round)[0], *others)
