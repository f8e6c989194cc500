"""DCD-PSGD: gossip in which a worker and its neighbours all apply the same compressed step.

Idea: As `d-psgd`, but a worker and its neighbours hold bitwise equal copies of its parameters. Each worker forms the
weighted mean of its own and its neighbours' parameters, lets its optimizer update that, and compresses the difference
from its previous parameters (`compress`). The worker and its neighbours apply the same decoded difference: x_i <- x_i +
C(z_i), with z_i = sum_j W_ij x_j - lr g_i - x_i. What the code leaves out is lost, so codecs have to be unbiased.
Momenta stay each worker's own.

Cost: Per step one code to each neighbour, sent while the next gradient is computed; one encoding, and one decoding per
neighbour. In memory a copy of the worker's own replica and of each neighbour's, and two more during a step. Without
`compress` it is `d-psgd`.

When it loses: With coarse codes. The theory needs a small error alpha, relative to the norm of the input: (1 - rho)^2 >
4 mu^2 alpha^2. Here rho is W's second largest eigenvalue, and mu the largest distance of its eigenvalues from 1. On a
ring of 8 alpha may be 0.073: `qsgd` of 8 bits. Where the condition does not hold, a line on stderr says so. `choco-sgd`
takes any codec.

Honesty:
- worker death: goes on; once all remaining workers know of the death, they form a new graph, and new neighbours receive
  the full copy once; with `on_death="stop"` all stop
- pause: goes on; its neighbours wait until it wakes up, and then everyone else
- slow worker: goes on; all wait for it, a few steps later
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some rounds all replicas
- resize: goes on; every new worker starts at the mean of the old replicas, and sends its copy in full once
- resume: goes on; every worker with its own replica and copies, bitwise

Paper: Tang, Gan, Zhang, Zhang, Liu, "Communication compression for decentralized training", NeurIPS 2018, Algorithm 1
and Theorem 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quorate.core.neighbours import EdgeCodec
from quorate.core.strategy import Worker
from quorate.core.telling import tell as say
from quorate.core.topology import Topology
from quorate.core.vectors import Flat
from quorate.gossip.topology.mixing import matrix
from quorate.strategies import register
from quorate.strategies.parts import neighbour_copies
from quorate.strategies.parts.gossip import GossipSettings, unchanging_graph


@register("dcd-psgd")
@dataclass(frozen=True, kw_only=True)
class DCDPSGD(GossipSettings):
    """Gossip as in d-psgd, with compressed steps that a worker and its neighbours apply identically."""

    compresses = "differences"

    def start(self, worker: Worker) -> neighbour_copies.NeighbourCopies:
        size, codec = worker.size, worker.neighbours.codec
        graph = unchanging_graph(self.topology, size, "dcd-psgd keeps a copy of each neighbour, which must stay")
        neighbour_copies.check_unbiased(codec, "dcd-psgd")
        if codec is not None and worker.rank == 0:
            _warn(graph, size, codec)
        return neighbour_copies.NeighbourCopies(graph=graph, **neighbour_copies.equal_copies(worker))

    def step(self, worker: Worker) -> None:
        s: neighbour_copies.NeighbourCopies = worker.state
        self.drain(worker)
        worker.update()  # line 5: of the gradient at x_t
        if s.pull is not None:
            worker.replica.shift(s.pull)
            s.pull = None
        x = worker.parameters.bare()
        neighbour_copies.tell(worker, x, lambda: x - s.own, neighbour_copies.added)  # lines 6 and 8
        worker.parameters = s.own  # line 7

    def drain(self, worker: Worker) -> None:
        neighbour_copies.take_in(worker, neighbour_copies.added)

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return neighbour_copies.pulled(worker, worker.state.pull)


def most_noise(graph: Topology, size: int) -> float:
    """alpha up to which Theorem 1 holds: (1 - rho) / (2 mu) for the eigenvalues of W."""
    others = np.sort(np.linalg.eigvalsh(matrix(graph, size, 0)))[:-1]
    if not len(others):
        return float("inf")
    return float((1.0 - np.abs(others).max()) / (2.0 * np.abs(others - 1.0).max()))


def _warn(graph: Topology, size: int, codec: EdgeCodec) -> None:
    alpha, most = codec.left_out**0.5, most_noise(graph, size)
    if alpha > most:
        say(
            f"quorate: dcd-psgd is known to converge if the error of codes is less than {most:.2g} times the encoded "
            f"vector on this graph, and the error of these is {alpha:.2g}. Use more levels, a smaller bucket, or "
            "choco-sgd\n"
        )
