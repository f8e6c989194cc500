"""NoLoCo: local steps, then an outer step on a mean with one random neighbour; no mean of all is ever formed.

Idea: Every worker takes H steps (`sync_every`) of its own optimizer from its point p, and has moved by g. It then steps
along g, averages the result with its neighbour in a random pair of this round, and adds a momentum of its own:

    y = p + eta g
    next p = y - alpha (y - W y) + gamma (y - last y)

Here eta is `outer_rate`, alpha is `mixing`, gamma is `outer_momentum`, and W y is the mean with the neighbour.

With an outer rate of 1 and no momentum these are local steps with gossip; with every step exchanged it is a kind of
`d-psgd`. Replicas differ to the end, and evaluations and the result are of their mean.

Cost: Every H steps d numbers to one neighbour, whatever the number of workers, after the step. Memory holds three
copies of the parameters: p, the last y, and the y that is sent. Only the two workers of a pair wait for each other.
With an odd number of workers, one has no neighbour in a round and goes on alone. Other topologies send to each of their
neighbours.

When it loses: Where a mean of all is cheap: `diloco` has all movements in each outer step, and equal replicas. With
data that differ much between workers, because replicas drift apart by a whole period. With few rounds: the movement of
one worker needs log2 P rounds to reach all.

Honesty:
- worker death: goes on; its neighbour in this round continues with its own numbers; later pairs are drawn among the
  remaining workers; with `on_death="stop"` all stop
- pause: goes on; its neighbour of the round waits until it wakes up, then the neighbours of that one
- slow worker: goes on; a worker that is paired with it waits; others do not until they meet one that has waited
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some rounds all replicas
- resize: goes on; every new worker starts at the mean of the old replicas, points and momenta
- resume: goes on; every worker with its own replica, point and momentum

Paper: Kolehmainen, Blagoev, Donaghy, Ersoy, Nies, "NoLoCo: No-all-reduce low communication training method for large
models", 2025 (arXiv 2506.10911), after its public code, for new pairs in each round, H = 50, and momentum. It sends two
vectors and pulls points together by the momentum. The outer step here, with one vector, is the general form of
"GASLoC", 2026 (arXiv 2606.11081), after a public description of its equation. Defaults of rate and momentum are those
of `diloco`, and ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import mixed
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.gossip import GossipSettings, OnGraph, begin_exchange, own_copy, undirected_graph
from quorate.strategies.parts.local_steps import LocalSteps, Period, period_from
from quorate.strategies.parts.outer_steps import check_outer, chosen_outer, dots, usual_outer


@dataclass(kw_only=True)
class State(OnGraph, LocalSteps):
    """The local steps of one worker, the point at which they began, and the newest vector that it has sent."""

    point: Flat = kept("average")
    """p."""
    sent: Flat | None = kept("average", default=None)
    """The last y; None before the first outer step."""


@register("noloco")
@dataclass(frozen=True, kw_only=True)
class NoLoCo(GossipSettings):
    """Local steps, then an outer step on a mean with the neighbours of a round, which are random pairs."""

    topology: str = "random-matching"
    """The graph of each round: a name from `quorate list topologies`. With the default, workers meet in random
    pairs."""
    sync_every: int | str = 50
    """H, as in `local-sgd`."""
    mixing: float = 1.0
    """alpha: how far a worker moves towards the mean with its neighbours; 1: to the mean."""
    outer_rate: float | None = None
    """eta: length of the outer step along the worker's own movement; unless it is set, by `sync_every`, as in
    `diloco`."""
    outer_momentum: float | None = None
    """gamma: share of the change since the last outer step that is repeated; unless it is set, as in `diloco`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_outer(self.outer_rate, self.outer_momentum)
        if not 0 < self.mixing <= 1:
            raise ConfigurationError(f"mixing is {self.mixing}; it must be a share above 0 and at most 1")
        period_from(self.sync_every)

    @property
    def period(self) -> Period:
        """H."""
        return period_from(self.sync_every)

    @property
    def acts_on_pieces(self) -> bool:
        return super().acts_on_pieces and self.period.unit == "steps"

    def start(self, worker: Worker) -> State:
        return State(graph=undirected_graph(self.topology, worker.size), point=own_copy(worker))

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        worker.update()
        s.count(worker, self.period)
        if s.is_due(worker, self.period):
            self._meet(worker)

    def _meet(self, worker: Worker) -> None:
        s: State = worker.state
        rate, momentum = chosen_outer(self.outer_rate, self.outer_momentum, usual_outer("sgd", self.period))
        delta = own_copy(worker).add_(s.point, -1.0)
        y = worker.neighbours.blank().copy_(s.point).add_(delta, rate)
        mean = mixed(begin_exchange(worker, y).wait(), worker.rank)
        x = y * (1.0 - self.mixing)
        x.add_(mean, self.mixing).add_(y, momentum if s.sent is not None else 0.0)
        if s.sent is not None:
            x.add_(s.sent, -momentum)
        self._note(worker, delta, x - s.point)
        s.sent, s.point = y, x
        worker.parameters = x
        s.restart()

    def _note(self, worker: Worker, delta: Flat, step: Flat) -> None:
        square, along = dots((delta.parts, delta.parts), (step.parts, delta.parts))
        if square > 0:
            worker.note_outer_step(0, None, reach=along / square)

    def restored(self, worker: Worker, at: Flat | None) -> None:
        s: Any = worker.state
        if at is not None:  # the script has changed the parameters, which count as they are
            s.point, s.sent = own_copy(worker), None
            s.restart()
