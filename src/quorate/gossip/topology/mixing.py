"""How fast numbers become equal under a topology: the matrix of a cycle, its gap, and rounds to consensus."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quorate.core.topology import Topology

Matrix = NDArray[np.float64]
_EXACT = 1e-12
_CYCLES = 4
_SOON = 3


def matrix(topology: Topology, size: int, round: int) -> Matrix:
    """W of one round, (size, size): row i holds what the numbers of each worker count in the mean of worker i."""
    found = np.zeros((size, size))
    for rank in range(size):
        for peer, weight in topology.in_edges(rank, size, round):
            found[rank, peer] += weight
    return found


@dataclass(frozen=True)
class Mixing:
    """How fast numbers become equal."""

    factor: float
    """By which the distance from the mean falls in a round, in the long run (0: it is exact after a cycle)."""
    exact_after: int | None
    """Rounds after which everyone has the exact mean; None: never."""
    messages: float
    """Out of each worker in a round, in the mean over workers and rounds."""
    most_messages: int
    """Of the busiest worker, out of it or to it, in a round."""

    @property
    def gap(self) -> float:
        """The spectral gap: 1 - `factor`."""
        return 1.0 - self.factor

    def rounds_to(self, share: float) -> float:
        """Rounds until the distance from the mean is `share` of what it was, by the factor."""
        if self.exact_after is not None:
            return float(self.exact_after)
        return math.inf if self.factor >= 1.0 else math.log(share) / math.log(self.factor)


def mixing_of(topology: Topology, size: int) -> Mixing:
    """That of `topology` among `size` workers. Cost: eigenvalues of a (size, size) matrix."""
    rounds = topology.cycle(size)
    matrices = [matrix(topology, size, round) for round in range(rounds)]
    product, exact_after = np.eye(size), None
    for count in range(_CYCLES * rounds):
        product = matrices[count % rounds] @ product
        if exact_after is None and count < _SOON * size.bit_length() and np.abs(product - 1.0 / size).max() < _EXACT:
            exact_after = count + 1
    if exact_after is not None:
        factor = 0.0
    elif topology.is_balanced:
        factor = float(np.linalg.norm(product - 1.0 / size, 2)) ** (1.0 / (_CYCLES * rounds))
    else:
        factor = sorted(abs(np.linalg.eigvals(product)))[-2] ** (1.0 / (_CYCLES * rounds))
    out = [[len(topology.out_edges(r, size, t)) - 1 for r in range(size)] for t in range(rounds)]
    to = [[len(topology.in_edges(r, size, t)) - 1 for r in range(size)] for t in range(rounds)]
    return Mixing(
        factor=min(1.0, factor),
        exact_after=exact_after,
        messages=sum(map(sum, out)) / (size * rounds),
        most_messages=max(max(max(row) for row in out), max(max(row) for row in to)),
    )
