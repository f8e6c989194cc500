"""D2: gossip for workers with different data: each step corrects for the one before it.

Idea: As `d-psgd`, for workers whose data differ much. In `d-psgd` each worker is pulled towards the optimum of its own
data, and its neighbours undo only half of that. D2 adds to each update a correction for the last one: x_{t+1} = W (2
x_t - x_{t-1} - lr g_t + lr g_{t-1}). If v_t is x_t after this worker's own update, this is x_{t+1} = W (x_t + v_t -
v_{t-1}), with x_1 = W v_0, so any optimizer's update can be used. W is the topology's matrix, made lazy, (I + W) / 2,
because D2 needs eigenvalues above -1/3. Momenta stay each worker's own.

Cost: Per step, d numbers to each neighbour, after the backward pass; three flat copies of the parameters. All
neighbours wait for each other in every step.

When it loses: Where all workers draw from the same data: it gains nothing, and mixes at half the speed. Where learning
rates change abruptly: the correction still has the size of the old rate. With dropout or small batches: noise is added
twice. Where workers end at different steps: corrections cancel out only over all workers, and those of workers that
have ended are missing.

Honesty:
- worker death: goes on; once all remaining workers know of the death, they start again on a new graph. They do so
  without the old corrections, whose sum lacks those of the dead worker; with `on_death="stop"` all stop
- pause: goes on; its neighbours wait until it wakes up, and then everyone else
- slow worker: goes on; all wait for it, a few steps later
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some rounds all replicas
- resize: goes on; every new worker starts at the mean of the old replicas and of their corrections
- resume: goes on; every worker with its own replica

Paper: Tang, Lian, Yan, Zhang, Liu, "D2: decentralized training over decentralized data", ICML 2018, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.neighbours import mixed
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.gossip import GossipSettings, OnGraph, begin_exchange, own_copy, unchanging_graph


@dataclass(kw_only=True)
class State(OnGraph):
    """The state of D2 between two steps."""

    before: Flat | None = kept("average", default=None)
    """v_{t-1}: the parameters after this worker's own update in the step before."""
    shown: Flat | None = kept("drop", default=None)
    """x_t as the last step left it."""
    members: tuple[int, ...] | None = kept("drop", default=None)
    """Among whom the last step mixed."""


@register("d2")
@dataclass(frozen=True, kw_only=True)
class D2(GossipSettings):
    """Gossip as in d-psgd, with a correction for data that differ between workers."""

    def start(self, worker: Worker) -> State:
        return State(graph=unchanging_graph(self.topology, worker.size, "d2 needs neighbours that stay the same"))

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        members = worker.neighbours.members()
        if s.members not in (None, members):
            s.before = None  # the corrections of the dead are missing in the sum of all: it restarts
        s.members = members
        if s.before is not None and s.shown is not None:
            worker.replica.take_edits(s.shown, into=s.before)  # what the script has written is no step to be corrected
        x = own_copy(worker)
        worker.update()
        v = own_copy(worker)
        sent = worker.neighbours.blank().copy_(v)
        if s.before is not None:
            sent.add_(x).add_(s.before, -1.0)
        received = begin_exchange(worker, sent).wait()
        worker.parameters = s.shown = (mixed(received, worker.rank) + sent) / 2  # by (I + W) / 2
        s.before = v
