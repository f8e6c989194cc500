"""Overlap SGP: push-sum that adds shares when they arrive, at most some steps late.

Idea: As `sgp`, but no worker waits for the shares of the newest steps: shares are sent while the next gradients are
computed, and added when they arrive. A worker waits only for shares that are `bound` steps old. A share in flight
belongs to no worker, so the conserved sum is that of all shares held and all in flight. Weights are sent with the
shares, so z = x / u stays correct in the meantime.

Cost: As `sgp`, and in memory one copy of the parameters for each share in flight. A worker waits only for a neighbour
that is more than `bound` steps behind.

When it loses: Where no worker is late and the network is fast: shares are one step more stale than necessary. Where one
worker is always slow: at the bound everyone waits for it after all.

Honesty:
- worker death: goes on; the weight that it held, and the weight in flight to it or from it, is lost and reported. The
  mean is that of the remaining weight, on a graph among the remaining workers; with `on_death="stop"` all stop
- pause: goes on; a worker that receives from it goes on for `bound` steps, then waits until it wakes up, or for at most
  `patience`
- slow worker: goes on; all wait for it when it is more than `bound` steps behind
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some rounds all replicas
- resize: goes on; every new worker starts at the mean of the old numerators and weights
- resume: goes on; every worker with its own numerator and weight; no shares are in flight

Paper: Assran, Loizou, Ballas, Rabbat, "Stochastic gradient push for distributed deep learning", ICML 2019, Algorithm 2,
for tau = 1. With a larger tau, workers there send in every tau-th step, and here in every step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import NeighbourShare, UnderWay, added_up
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.gossip.topology import topology_of
from quorate.strategies import register
from quorate.strategies.parts.gossip import GossipSettings, OnGraph, PushSum, begin_exchange, check_patience, own_copy


@dataclass(kw_only=True)
class State(PushSum, OnGraph):
    """The state of push-sum, and the exchanges whose shares have not been taken in, the oldest first."""

    under_way: deque[UnderWay] = kept("drop", default_factory=deque)


@register("osgp")
@dataclass(frozen=True, kw_only=True)
class OSGP(GossipSettings):
    """Push-sum that uses shares as they arrive, at most `bound` steps late."""

    topology: str = "one-peer-exponential"
    """The graph: a name from `quorate list topologies`, with settings as in `d-psgd`; edges may be directed."""
    bound: int = 1
    """Maximum number of steps that a share may be late; 0 is `sgp`, 1 is tau = 1 in the paper."""
    patience: float | None = None
    """Seconds to wait for a share, which still counts when it arrives later. By default as long as any other wait
    lasts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bound < 0:
            raise ConfigurationError(f"bound is {self.bound}; it must be a number of steps, 0 or more")
        check_patience(self.patience)

    @property
    def acts_on_pieces(self) -> bool:
        return False

    def start(self, worker: Worker) -> State:
        return State(graph=topology_of(self.topology, worker.size), x=own_copy(worker))

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        s.take_edits(worker.replica)
        worker.update(at=s.x)
        newest = begin_exchange(worker, s.x, s.u)
        s.under_way.append(newest)
        assert newest.own is not None
        late = self._received(worker, at_most=self.bound)
        s.x, s.u = added_up([newest.own, *s.taken(), *late], worker.neighbours.blank())
        worker.parameters = s.x / s.u

    def _received(self, worker: Worker, *, at_most: int) -> list[NeighbourShare]:
        """The shares of others that have arrived, after waiting for those that are more than `at_most` steps late."""
        s, shares = worker.state, []
        while s.under_way and (len(s.under_way) > at_most or s.under_way[0].done()):
            received = s.under_way.popleft().within(self.patience)
            shares += [share for peer, share in received.items() if peer != worker.rank]
        return shares if self.patience is None else [*shares, *worker.neighbours.late()]

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.state.consensus(worker.parameters), worker.state.mass

    def drain(self, worker: Worker) -> None:
        worker.state.take_edits(worker.replica, at_pause=True)
        worker.state.keep(self._received(worker, at_most=0), worker.neighbours.blank())

    def pause(self, worker: Worker) -> None:
        received = self._received(worker, at_most=0)
        worker.state.keep([*received, *worker.neighbours.late()], worker.neighbours.blank())

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is None:
            worker.parameters = worker.state.x / worker.state.u

    def finish(self, worker: Worker) -> None:
        worker.state = State(graph=worker.state.graph, round=worker.state.round, x=own_copy(worker))
