"""Stochastic gradient push: gossip along one-way edges, corrected by weights that are sent along.

Idea: Push-sum. Every worker holds a numerator x and a weight u, at first 1; its model is z = x / u. It computes a
gradient at z and its optimizer updates x. Then it sends shares of x and u along its outgoing edges, keeps one share,
and adds up the shares it receives. Shares only have to add up to 1 at the sender, so the graph may be directed and
change from step to step. By default each worker sends half to one other, 1, 2, 4 ... ranks ahead in turn. Every
exchange conserves the sums of x and of u over all workers, and the weighted mean of all models is sum x / sum u. What
happens to momenta is a choice (`momentum`); by default they stay each worker's own.

Cost: Per step, d + 1 numbers along each outgoing edge (one, by default), after the backward pass; two flat copies of
the parameters. Each worker waits for the workers from which it receives in that step.

When it loses: Where one worker is late in most steps: a worker that receives from it waits, and within log2 P steps all
do (`osgp` waits less). With few examples per worker, where replicas differ much.

Honesty:
- worker death: goes on; the weight that it held, and the weight in flight to it or from it, is lost and reported. The
  mean is that of the remaining weight, on a graph among the remaining workers; with `on_death="stop"` all stop
- pause: goes on; a worker that receives from it waits until it wakes up, and then everyone else; with `patience`, at
  most that long
- slow worker: goes on; all wait for it, a few steps later
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some rounds all replicas
- resize: goes on; every new worker starts at the mean of the old numerators and weights
- resume: goes on; every worker with its own numerator and weight

Paper: Assran, Loizou, Ballas, Rabbat, "Stochastic gradient push for distributed deep learning", ICML 2019, Algorithm
1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.neighbours import NeighbourShare
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.gossip.topology import topology_of
from quorate.strategies import register
from quorate.strategies.parts import gossip


@dataclass(kw_only=True)
class State(gossip.PushSum, gossip.OnGraph):
    """The state of push-sum, and the graph."""


@register("sgp")
@dataclass(frozen=True, kw_only=True)
class SGP(gossip.GossipSettings):
    """Push-sum: shares of the parameters are sent along directed edges, together with a weight."""

    topology: str = "one-peer-exponential"
    """The graph: a name from `quorate list topologies`, with settings as in `d-psgd`; edges may be directed."""
    momentum: Literal["keep", "average", "reset"] = "keep"
    """Optimizer state: each worker keeps its own, it is averaged with the neighbours' like the parameters, or it is
    reset after every cycle of a changing graph."""
    patience: float | None = None
    """Seconds to wait for a share, which still counts when it arrives later. By default as long as any other wait
    lasts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        gossip.check_patience(self.patience)

    def start(self, worker: Worker) -> State:
        graph = topology_of(self.topology, worker.size)
        gossip.begin_momenta(worker, graph, self.topology, self.momentum)
        return State(graph=graph, x=worker.parameters.bare())

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        self.drain(worker)
        worker.update(at=s.x)  # lines 2 and 3: the gradient at z, the update on x
        share = gossip.numerators(worker, s.x, s.u)
        received = gossip.begin_exchange(worker, share, s.u).within(self.patience)  # line 4
        late = [] if self.patience is None else worker.neighbours.late()
        s.x, s.u = gossip.take_shares(worker, [*received.values(), *late])  # lines 5 to 7
        if self.momentum == "reset":
            gossip.forget_after_cycle(worker)

    def drain(self, worker: Worker) -> None:
        worker.state.take_edits(worker.replica)

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.parameters, worker.state.u

    def pause(self, worker: Worker) -> None:
        s: State = worker.state
        own = NeighbourShare(gossip.numerators(worker, s.x, s.u), 1.0, (s.u,), -1)
        s.x, s.u = gossip.take_shares(worker, [own, *worker.neighbours.late()])

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is None:
            worker.parameters = worker.state.x / worker.state.u

    def finish(self, worker: Worker) -> None:
        worker.state.x, worker.state.u = worker.parameters.bare(), 1.0
