"""`RecursiveDoubling`: all-reduce in which pairs exchange all they have, at twice the distance each time.

Idea: In step k = 0, 1, 2 ... each worker exchanges its whole vector with the one whose rank differs in bit k, and both
add the two. After log2 P steps each has the sum of all. Both of a pair add the same two vectors in the same order, so
all workers get the same bits. Where P is no power of two, the surplus workers contribute first and receive the sum
last.

Cost: With n bytes, log2 P messages one after the other, each of the full vector. This takes log2 P (alpha + n beta + n
gamma) seconds, and each worker sends log2 P n bytes. Where P is no power of two, log2 P is rounded down, and 2 alpha +
2 n beta + n gamma are added.

When it loses: With large vectors: `halving-doubling` and `ring` send at most twice the vector, whatever P is.

Paper: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", International
Journal of High Performance Computing Applications 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorate.means.algorithms.by_messages import ByMessages
from quorate.means.algorithms.steps import Cost, Step, Transfer, cost_with_surplus, power_of_two, with_surplus


class RecursiveDoubling(ByMessages):
    """Pairs of workers exchange and add full vectors, at distances 1, 2, 4 and so on: the fewest messages."""

    @staticmethod
    def pieces(size: int) -> int:
        return 1

    @staticmethod
    def steps(size: int, rank: int) -> Iterator[Step]:
        return with_surplus(size, rank, 1, _among)

    @staticmethod
    def cost(size: int) -> Cost:
        doublings = power_of_two(size).bit_length() - 1
        return cost_with_surplus(size, Cost(doublings, doublings, doublings, doublings))


def _among(core: int, place: int) -> Iterator[Step]:
    distance = 1
    while distance < core:
        both = Transfer(place ^ distance, range(1), adds=True)
        yield Step(both, both)
        distance *= 2
