"""Gossip with memory: workers send compressed differences from a copy of themselves that their neighbours keep.

Idea: Every worker and its neighbours keep the same copy y_i of its parameters x_i. After a step of its optimizer a
worker sends q_i = Q(x_i - y_i), written small by any codec (`compress`), and all who keep the copy add q_i to it. The
part that the codec leaves out is in the next difference. Then each worker moves towards the copies of its neighbours:
x_i <- x_i + gamma sum_j W_ij (y_j - y_i). These moves cancel out over all workers, so the mean is conserved. It is a
small version of `choco-sgd`, with the same numbers under codecs such as top-k; unbiased codes are scaled there.

Cost: With d parameters, one code of them to each neighbour per step, after the backward pass and not overlapped. In
memory one copy of the worker's own parameters and one of each neighbour's.

When it loses: On fast networks, where encoding takes longer than sending. The fewer numbers a code holds, the smaller
gamma has to be.

Honesty:
- worker death: goes on; the others go on with a graph among them; with `on_death="stop"` all stop
- pause: goes on; its neighbours wait until it wakes up, and then everyone else
- slow worker: goes on; all wait for it, a few steps later
- corrupt gradient: untested
- resize: goes on; from the mean of the old replicas, and every copy is sent in full once
- resume: goes on; every worker with its own replica and copies

Paper: Koloskova, Stich, Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
communication", ICML 2019, Algorithm 1 (gossip) and 2 (with gradients). y_i is the paper's x^_i; copies begin at the
common start, not at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate import strategies
from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.gossip import GossipSettings, OnGraph, edges_of_next, unchanging_graph


@dataclass(kw_only=True)
class State(OnGraph):
    """The copies, and who is known to have them."""

    own: Flat = kept("average")  # y_i
    copies: dict[int, Flat] = kept("keyed", default_factory=dict)  # y_j, by rank
    met: dict[int, int] = kept("keyed", default_factory=dict)
    """The newest exchange with each neighbour, by rank."""


@strategies.register("gossip-memory")
@dataclass(frozen=True, kw_only=True)
class GossipMemory(GossipSettings):
    """Neighbours keep copies of each other, and send compressed differences from them."""

    compresses = "differences"

    gamma: float = 0.3
    """How far each step moves towards the copies of the neighbours, above 0 and at most 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.gamma <= 1:
            raise ConfigurationError(f"gamma is {self.gamma}; it must be a number above 0 and at most 1")

    def start(self, worker: Worker) -> State:
        graph = unchanging_graph(self.topology, worker.size, "copies are of neighbours that stay")
        return State(graph=graph, own=worker.parameters.bare())

    def step(self, worker: Worker) -> None:
        s, near = worker.state, worker.neighbours
        worker.update()  # x_i - eta g_i
        to, source = edges_of_next(worker)
        current = {peer for peer, number in s.met.items() if number == near.round}
        q = near.written(worker.parameters.bare() - s.own)  # line 2
        s.own = s.own + q.x  # line 5, for j = i
        vectors = {peer: q if peer in current else s.own for peer, _ in to}  # line 3; a new neighbour gets all of y_i
        received, pull = near.exchange(vectors, to, source).wait(), s.own * 0.0  # line 4
        for peer, share in sorted(received.items()):
            if share.is_written != (peer in current):  # a message was lost: both send their copies in full
                s.met.pop(peer, None)
            elif peer != worker.rank:
                s.copies[peer] = s.copies[peer] + share.x if share.is_written else share.x.clone()  # line 5
                s.met[peer] = share.round
                pull.add_(s.copies[peer] - s.own, share.weight)
        worker.replica.shift(pull * self.gamma)  # line 7
