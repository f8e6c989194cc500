"""D-PSGD: every step each worker averages its parameters with its neighbours', and adds its own update.

Idea: The workers are the nodes of a graph. Every worker computes a gradient at its own parameters x. Then x becomes the
weighted mean of its own and its neighbours' parameters, and the worker adds its optimizer's update: x_i <- sum_j W_ij
x_j - lr g_i(x_i). The parameters that a worker sends are known before its gradient, so they are sent while the gradient
is computed. What happens to momenta is a choice (`momentum`); by default they stay each worker's own. Replicas differ,
and they differ less the better the graph mixes.

Cost: Per step, d numbers to each neighbour (2 d on a ring, whatever the number of workers), sent during the forward and
backward pass; three flat copies of the parameters. All neighbours wait for each other in every step, so a delay reaches
everyone, one neighbour further with each step.

When it loses: Where one worker is late in most steps: all wait for it, as under all-reduce. With many workers on a
graph that mixes slowly: on a ring of 64 an update takes some 300 rounds to reach everyone, replicas drift apart and
accuracy falls. On fast networks, where an all-reduce costs almost nothing.

Honesty:
- worker death: goes on; a neighbour that would have sent it a share keeps that share. Once all remaining workers know
  of the death, they form a new graph; with `on_death="stop"` all stop
- pause: goes on; its neighbours wait until it wakes up, and then everyone else
- slow worker: goes on; all wait for it, a few steps later
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some rounds all replicas
- resize: goes on; every new worker starts at the mean of the old replicas
- resume: goes on; every worker with its own replica

Paper: Lian, Zhang, Zhang, Hsieh, Zhang, Liu, "Can decentralized algorithms outperform centralized algorithms? A case
study for decentralized parallel stochastic gradient descent", NIPS 2017, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.neighbours import UnderWay, mixed
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts import gossip


@dataclass(kw_only=True)
class State(gossip.OnGraph):
    """The state of D-PSGD between two steps."""

    under_way: UnderWay | None = kept("drop", default=None)
    sent: Flat | None = kept("drop", default=None)
    """x_i, as it was given to the neighbours."""
    mixed: Flat | None = kept("drop", default=None)
    """sum_j W_ij x_j, where the exchange has ended before the step that uses it."""


@register("d-psgd")
@dataclass(frozen=True, kw_only=True)
class DPSGD(gossip.GossipSettings):
    """Each step averages the parameters with those of the neighbours on an undirected graph."""

    momentum: Literal["keep", "average", "reset"] = "keep"
    """Optimizer state: each worker keeps its own, it is averaged with the neighbours' like the parameters, or it is
    reset after every cycle of a changing graph."""
    overlap: bool = True
    """Whether parameters are sent while the gradient is computed, as published; otherwise they are sent afterwards."""

    def start(self, worker: Worker) -> State:
        graph = gossip.undirected_graph(self.topology, worker.size)
        gossip.begin_momenta(worker, graph, self.topology, self.momentum)
        return State(graph=graph)

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        if s.under_way is None and s.mixed is None:
            self._give(worker)
        self.drain(worker)
        assert s.sent is not None and s.mixed is not None
        if self.momentum == "average":
            x = worker.parameters
            worker.replica.write(s.mixed, moments=True)
            worker.parameters = x
        if self.momentum == "reset":
            gossip.forget_after_cycle(worker)
        worker.update()  # of the gradient at x_i, and weight decay there
        worker.replica.shift(s.mixed.add_(s.sent, -1.0))  # from x_i to sum_j W_ij x_j
        s.sent = s.mixed = None
        if self.overlap:
            self._give(worker)

    def _give(self, worker: Worker) -> None:
        s: State = worker.state
        s.sent = gossip.own_copy(worker)
        s.under_way = gossip.begin_exchange(worker, s.sent)

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        s, x = worker.state, worker.parameters
        if s.mixed is not None and s.sent is not None:
            x.add_(worker.replica.parameters_of(s.mixed)).add_(worker.replica.parameters_of(s.sent), -1.0)
        return x, 1.0

    def drain(self, worker: Worker) -> None:
        s: State = worker.state
        if s.under_way is not None:
            s.mixed, s.under_way = mixed(s.under_way.wait(), worker.rank), None
