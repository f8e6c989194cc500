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
    """Return W of one round, (size, size): W[i, j] is the weight of worker j in the mean of worker i."""
    weights = np.zeros((size, size))
    for rank in range(size):
        for peer, weight in topology.in_edges(rank, size, round):
            weights[rank, peer] += weight
    return weights


@dataclass(frozen=True)
class Mixing:
    """How fast numbers become equal."""

    factor: float
    """Asymptotic factor of the distance from the mean per round; 0 if rounds reach the exact mean."""
    exact_after: int | None
    """Rounds after which all workers have the exact mean; None: never."""
    messages: float
    """Messages that a worker sends in a round, averaged over workers and rounds."""
    most_messages: int
    """Messages that the busiest worker sends, or receives, in a round."""

    @property
    def gap(self) -> float:
        """The spectral gap: 1 - `factor`."""
        return 1.0 - self.factor

    def rounds_to(self, share: float) -> float:
        """Return the rounds after which the distance from the mean has fallen to `share` of its first value."""
        if self.exact_after is not None:
            return float(self.exact_after)
        return math.inf if self.factor >= 1.0 else math.log(share) / math.log(self.factor)


def mixing_of(topology: Topology, size: int) -> Mixing:
    """Return the mixing of `topology` among `size` workers. Cost: eigenvalues of a (size, size) matrix."""
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
