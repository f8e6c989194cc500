"""A graph among those that are left, when some of its workers have died."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.core.errors import ConfigurationError
from quorate.core.topology import Edge, Topology


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
