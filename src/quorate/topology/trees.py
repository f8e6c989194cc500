"""Graphs without circles, which `relay` needs: everything that goes around comes to everyone by one way only."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.topology import register
from quorate.topology.edges import Undirected


@register("path")
@dataclass(frozen=True, kw_only=True)
class Path(Undirected):
    """Everyone in a line, each with the next."""

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        return frozenset({rank - 1, rank + 1}) & frozenset(range(size))


@register("binary-tree")
@dataclass(frozen=True, kw_only=True)
class BinaryTree(Undirected):
    """Rank 0 at the top, two below each: 2 log2 P steps from anyone to anyone."""

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        below = {child for child in (2 * rank + 1, 2 * rank + 2) if child < size}
        return frozenset(below | ({(rank - 1) // 2} if rank else set()))
