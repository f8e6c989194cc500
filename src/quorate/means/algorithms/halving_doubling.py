"""`HalvingDoubling`: all-reduce in which pairs exchange half of what is left to be added, then double what is complete.

Idea: The vector is cut into P pieces. At distance P / 2, P / 4 ... 1 the two workers of a pair share the part that they
both hold. Each sends one half to the other and adds the other half, so after log2 P steps each worker has one complete
piece. At distance 1, 2 ... P / 2 pairs exchange all that they have complete, until everyone has everything. Where P is
no power of two, the surplus workers contribute first and receive the sum last.

Cost: With n bytes, 2 log2 P messages one after the other, and 2 (P - 1) / P n bytes out of each worker: 2 log2 P alpha
+ 2 (P - 1) / P n beta + (P - 1) / P n gamma seconds. Where P is no power of two, P stands for the largest one below it,
and 2 alpha + 2 n beta + n gamma are added.

When it loses: Where P is no power of two and vectors are large, to `ring`, which then moves half as much; with tiny
vectors, to `recursive-doubling`, which needs half as many messages.

Paper: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", International Journal of High Performance Computing
Applications 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorate.means.algorithms.by_messages import ByMessages
from quorate.means.algorithms.steps import Cost, Step, Transfer, cost_with_surplus, power_of_two, with_surplus


class HalvingDoubling(ByMessages):
    """Recursive halving and doubling between pairs of workers: few messages and few bytes."""

    @staticmethod
    def pieces(size: int) -> int:
        return power_of_two(size)

    @staticmethod
    def steps(size: int, rank: int) -> Iterator[Step]:
        return with_surplus(size, rank, power_of_two(size), _among)

    @staticmethod
    def cost(size: int) -> Cost:
        core = power_of_two(size)
        share = (core - 1) / core
        return cost_with_surplus(size, Cost(2 * (core.bit_length() - 1), 2 * share, share, 2 * share))


def _among(core: int, place: int) -> Iterator[Step]:
    distance = core // 2
    while distance:
        peer = place ^ distance
        yield Step(
            Transfer(peer, _around(peer, distance), adds=True), Transfer(peer, _around(place, distance), adds=True)
        )
        distance //= 2
    distance = 1
    while distance < core:
        peer = place ^ distance
        yield Step(
            Transfer(peer, _around(place, distance), adds=False), Transfer(peer, _around(peer, distance), adds=False)
        )
        distance *= 2


def _around(place: int, length: int) -> range:
    """Return the range of `length` pieces, cut at multiples of `length`, that contains `place`."""
    begin = place // length * length
    return range(begin, begin + length)
