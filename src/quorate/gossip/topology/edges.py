"""The edges of graphs: weights out of who is whose neighbour, also among those that are left when workers have died."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorate.core.errors import ConfigurationError
from quorate.core.topology import Edge, Topology


class _Graph:
    """There for every number of workers, and in every round the same, unless it says otherwise."""

    is_balanced: ClassVar[bool] = True

    def check(self, size: int) -> None:
        """See `core.topology.Topology`."""

    def cycle(self, size: int) -> int:
        """Every round is like the one before."""
        return 1


@dataclass(frozen=True, kw_only=True)
class Undirected(_Graph, ABC):
    """A graph whose edges lead both ways, with Metropolis weights: W[i, j] = 1 / (1 + max(degree of i, degree of j)).

    What is left of 1 is a worker's own. So W is symmetric, and its rows and columns add up to 1, whatever the graph
    (Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004).
    """

    directed: ClassVar[bool] = False

    @abstractmethod
    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        """Those of `rank`, without itself."""

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        mine = self.neighbours(rank, size, round)
        edges = [
            Edge(peer, 1.0 / (1 + max(len(mine), len(self.neighbours(peer, size, round))))) for peer in sorted(mine)
        ]
        return (Edge(rank, 1.0 - sum(edge.weight for edge in edges)), *edges)

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self.out_edges(rank, size, round)


@dataclass(frozen=True, kw_only=True)
class Directed(_Graph, ABC):
    """A graph whose edges lead one way: every worker gives itself and those it reaches equal shares of its numbers.

    Columns of W add up to 1. Rows do where everyone is reached by as many as it reaches (`is_balanced`).
    """

    directed: ClassVar[bool] = True

    @abstractmethod
    def reached(self, rank: int, size: int, round: int) -> frozenset[int]:
        """Whom `rank` gives to, without itself."""

    @abstractmethod
    def reaching(self, rank: int, size: int, round: int) -> frozenset[int]:
        """Who gives to `rank`, without itself."""

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        mine = self.reached(rank, size, round)
        share = 1.0 / (1 + len(mine))
        return (Edge(rank, share), *(Edge(peer, share) for peer in sorted(mine)))

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        own = Edge(rank, 1.0 / (1 + len(self.reached(rank, size, round))))
        others = sorted(self.reaching(rank, size, round))
        return (own, *(Edge(peer, 1.0 / (1 + len(self.reached(peer, size, round)))) for peer in others))


def hops(size: int) -> list[int]:
    """1, 2, 4 ... as far as they are less than `size`; none for one worker."""
    return [1 << k for k in range(max(0, size - 1).bit_length())]


def among(graph: Topology, size: int, members: Sequence[int]) -> Topology:
    """`graph`, which was checked for `size` workers, among `members` of these (in order of rank): ranks stay theirs.

    It is laid out anew for so many workers, the first member being its rank 0: a ring is closed over the dead. Where
    it is not there for so many (one from a file, or pairs of an odd number), it is what the dead leave of it: what
    would go to them stays where it is, so columns add up to 1 as before, and W stays symmetric where it was.
    """
    if len(members) == size:
        return graph
    try:
        graph.check(len(members))
    except ConfigurationError:
        return _Remains(graph, members)
    return _LaidAnew(graph, members)


class _Among:
    """A graph that was checked."""

    def __init__(self, graph: Topology, members: Sequence[int]) -> None:
        self.graph, self.members = graph, members
        self.directed, self.is_balanced = graph.directed, graph.is_balanced

    def check(self, size: int) -> None:
        """It was."""


class _LaidAnew(_Among):
    def cycle(self, size: int) -> int:
        return self.graph.cycle(len(self.members))

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self._named(self.graph.out_edges(self.members.index(rank), len(self.members), round))

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self._named(self.graph.in_edges(self.members.index(rank), len(self.members), round))

    def _named(self, edges: Sequence[Edge]) -> tuple[Edge, ...]:
        return tuple(Edge(self.members[peer], weight) for peer, weight in edges)


class _Remains(_Among):
    def __init__(self, graph: Topology, members: Sequence[int]) -> None:
        super().__init__(graph, members)
        self.left = frozenset(members)
        self.is_balanced = graph.is_balanced and not graph.directed

    def cycle(self, size: int) -> int:
        return self.graph.cycle(size)

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        others = [edge for edge in self.graph.out_edges(rank, size, round)[1:] if edge.peer in self.left]
        return (Edge(rank, 1.0 - sum(edge.weight for edge in others)), *others)

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        others = [edge for edge in self.graph.in_edges(rank, size, round)[1:] if edge.peer in self.left]
        return (self.out_edges(rank, size, round)[0], *others)
