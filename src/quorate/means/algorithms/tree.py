"""`Tree`: all-reduce up a binomial tree and down again.

Idea: In step k = 0, 1, 2 ... every worker whose rank is an odd multiple of 2^k sends its full vector to the worker 2^k
below it. That worker adds it to its own. So rank 0 receives the sum of all, and sends it back the same way.

Cost: With n bytes, 2 log2 P messages one after the other, each of the full vector. This takes log2 P (2 alpha + 2 n
beta + n gamma) seconds, where log2 P is rounded up. Over all workers only 2 (P - 1) n bytes are sent, fewer than with
`recursive-doubling`; rank 0 sends log2 P n of them, half of the workers n.

When it loses: Always in time, if no worker is late and links are equal: to `recursive-doubling` with small vectors, to
`ring` or `halving-doubling` with large ones. Half of the workers have nothing to do after the first step.

Paper: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", International
Journal of High Performance Computing Applications 19(1), 2005: its reduce and its broadcast of
short vectors.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorate.means.algorithms.by_messages import ByMessages
from quorate.means.algorithms.steps import Cost, Step, Transfer


class Tree(ByMessages):
    """Full vectors are summed up a binomial tree of the workers, and the sum is sent back down."""

    @staticmethod
    def pieces(size: int) -> int:
        return 1

    @staticmethod
    def steps(size: int, rank: int) -> Iterator[Step]:
        distances = [1 << level for level in range(_levels(size))]
        for distance in distances:
            parent, child = _family(size, rank, distance, adds=True)
            yield Step(send=parent, receive=child)
        for distance in reversed(distances):
            parent, child = _family(size, rank, distance, adds=False)
            yield Step(send=child, receive=parent)

    @staticmethod
    def cost(size: int) -> Cost:
        levels = _levels(size)
        return Cost(messages=2 * levels, moved=2 * levels, added=levels, sent=levels)


def _levels(size: int) -> int:
    return (size - 1).bit_length()


def _family(size: int, rank: int, distance: int, *, adds: bool) -> tuple[Transfer | None, Transfer | None]:
    """Return the parent of `rank` if it is `distance` away, and the child at that distance."""
    if rank % (2 * distance) == distance:
        return Transfer(rank - distance, range(1), adds), None
    if rank % (2 * distance) == 0 and rank + distance < size:
        return None, Transfer(rank + distance, range(1), adds)
    return None, None
