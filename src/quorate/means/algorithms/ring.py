"""`Ring`: all-reduce around a ring.

Idea: The vector is cut into P pieces. In P - 1 steps every worker sends one piece to the next worker and adds the one
from the worker before it. So each piece travels around the ring once and is complete at one worker. In P - 1 more steps
the complete pieces go around once more. All links are busy all of the time.

Cost: With P workers and n bytes, 2 (P - 1) messages one after the other. Each worker sends 2 (P - 1) / P n bytes, the
least that is possible. The time is 2 (P - 1) alpha + 2 (P - 1) / P n beta + (P - 1) / P n gamma seconds. Each worker
sends to one other only.

When it loses: With small vectors or many workers: its messages wait for each other, and their number grows with P.
`recursive-doubling` needs log2 P of them, `halving-doubling` 2 log2 P.

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal of Parallel
and Distributed Computing 69(2), 2009; Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", International Journal of High Performance Computing Applications 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator

from quorate.means.algorithms.by_messages import ByMessages
from quorate.means.algorithms.steps import Cost, Step, Transfer


class Ring(ByMessages):
    """Each piece of the vector goes around a ring of all workers twice: once to be summed, once to be distributed."""

    @staticmethod
    def pieces(size: int) -> int:
        return size

    @staticmethod
    def steps(size: int, rank: int) -> Iterator[Step]:
        after, before = (rank + 1) % size, (rank - 1) % size
        for k in range(size - 1):
            gives, gets = (rank - k) % size, (rank - k - 1) % size
            yield Step(_transfer(after, gives, adds=True), _transfer(before, gets, adds=True))
        for k in range(size - 1):
            gives, gets = (rank - k + 1) % size, (rank - k) % size
            yield Step(_transfer(after, gives, adds=False), _transfer(before, gets, adds=False))

    @staticmethod
    def cost(size: int) -> Cost:
        share = (size - 1) / size
        return Cost(messages=2 * (size - 1), moved=2 * share, added=share, sent=2 * share)


def _transfer(peer: int, piece: int, *, adds: bool) -> Transfer:
    return Transfer(peer, range(piece, piece + 1), adds)
