"""AD-PSGD: asynchronous gossip: each step a worker averages with one neighbour, which answers while it computes.

Idea: No worker waits for the computation of another. After each gradient a worker draws one neighbour and sends it its
parameters. A background task on the neighbour answers at once with the neighbour's parameters, whatever its training is
doing, and both move halfway towards each other. Then the worker adds its optimizer's update. Both sides move by the
same difference with opposite signs, so the sum over all workers is conserved exactly, even if several exchanges cross.
The task that answers never asks, so no deadlock can occur on any graph. Momenta stay each worker's own.

Cost: Per step, d numbers to one neighbour and d back, after the backward pass; three flat copies of the parameters. A
worker waits for one message and its answer. With `overlap` it sends the request one step ahead, and the answer arrives
during the step.

When it loses: Where workers are equally fast: parameters are averaged between the computation and the use of a
gradient, and replicas differ more than under an all-reduce. Where one worker is much slower: its gradients are stale
when they count.

Honesty:
- worker death: goes on; a worker that waits for its answer continues within a second; neighbours are then drawn from a
  graph among the remaining workers; with `on_death="stop"` all stop
- pause: goes on; a worker that has drawn the sleeping worker waits until it wakes up, the others go on
- slow worker: goes on; no worker waits for it, and it takes fewer steps
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some steps all replicas
- resize: goes on; every new worker starts at the mean of the old replicas
- resume: goes on; every worker with its own replica

Paper: Lian, Zhang, Zhang, Liu, "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018 (Algorithm
1). The paper avoids deadlocks with a bipartite graph; sending the difference in place of the mean is ours."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.contracts import Work
from quorate.core.draws import mixed
from quorate.core.neighbours import Answer, Request
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.gossip.topology.edges import among
from quorate.strategies import register
from quorate.strategies.parts.gossip import GossipSettings, KeptCopy, OnGraph, own_copy, undirected_graph


@dataclass(kw_only=True)
class State(KeptCopy, OnGraph):
    """The parameters between steps, which neighbours move as well; what was sent to be averaged, and the answer."""

    asked: tuple[Flat, Work[Answer]] | None = kept("drop", default=None)
    is_averaged: bool = kept("drop", default=False)
    """Whether the neighbour that is asked ahead has answered before the next step."""


@register("ad-psgd")
@dataclass(frozen=True, kw_only=True)
class ADPSGD(GossipSettings):
    """Each step averages the parameters with those of one neighbour, which answers while it computes."""

    meets = "asks"

    topology: str = "complete"
    """The graph, a name from `quorate list topologies`. In each step a worker draws one of its neighbours."""
    overlap: bool = False
    """Whether the request is sent one step earlier, so that a worker does not wait for the answer."""

    def start(self, worker: Worker) -> State:
        s = State(graph=undirected_graph(self.topology, worker.size), x=own_copy(worker))

        def average(request: Request) -> None:
            assert request.x is not None
            with worker.neighbours.lock:
                own = None if s.pause_edited else worker.neighbours.blank().copy_(s.x)
                if own is not None:
                    s.x.add_(request.x - own, 0.5)
            request.reply(own)

        worker.neighbours.serve("average", average)
        return s

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        with worker.neighbours.lock:
            s.take_edits(worker)  # before it is sent
        if not s.is_averaged:
            s.asked = s.asked or self._ask(worker)
        self._take_answer(worker)
        s.is_averaged = False
        with worker.neighbours.lock:
            worker.update(at=s.x)
            s.show(worker)
        if self.overlap:
            s.asked = self._ask(worker)

    def _ask(self, worker: Worker) -> tuple[Flat, Work[Answer]] | None:
        s, rank, step = worker.state, worker.rank, worker.step
        living = [other for other in range(worker.size) if other not in worker.neighbours.dead]
        near = [edge.peer for edge in among(s.graph, worker.size, living).out_edges(rank, worker.size, step)[1:]]
        if not near:
            return None
        with worker.neighbours.lock:
            sent = worker.neighbours.blank().copy_(s.x)
        return sent, worker.neighbours.ask(near[mixed(worker.seed, 0xAD, rank, step) % len(near)], "average", sent)

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        with worker.neighbours.lock:
            return worker.parameters.copy_(worker.state.x), 1.0

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is None:
            with worker.neighbours.lock:
                worker.state.show(worker)

    def finish(self, worker: Worker) -> None:
        worker.state.x = own_copy(worker)

    def drain(self, worker: Worker) -> None:
        s: State = worker.state
        with worker.neighbours.lock:
            s.take_edits(worker, at_pause=True)
        self._take_answer(worker)

    def _take_answer(self, worker: Worker) -> None:
        s: State = worker.state
        if s.asked is not None:
            sent, answer = s.asked
            theirs, s.asked, s.is_averaged = answer.wait()[0], None, True
            if theirs is not None and not s.pause_edited:  # else it is dead, or has answered numbers of before the edit
                with worker.neighbours.lock:
                    s.x.add_(theirs - sent, 0.5)
