"""Robust aggregation: every step a rule combines all workers' momenta, and some of these may be wrong.

Idea: Each worker keeps the momentum of its own gradients, m = beta m + (1 - beta) g, and sends it. An aggregation rule
that tolerates up to `f` wrong vectors combines all momenta into one vector, which every worker's optimizer gets in
place of the mean. Momenta of honest workers are closer together than their gradients, so a rule can better distinguish
them from wrong vectors. Attacks that are small in every step then do not accumulate unseen. The optimizer's own
momentum must be 0.

Cost: Per step and worker, with P workers and d parameters, 2 (P - 1) / P d numbers are sent, as in an all-reduce, and
P^2 more. There are P^2 d / P products; memory holds two vectors for the exchange and one of momentum. Nothing overlaps
with the backward pass.

When it loses: Where no worker is wrong: most rules are noisier than the mean. Where workers have unlike data: a rule
may mistake rare gradients for wrong ones; mix the vectors first (`reduce="nearest-neighbors"`). Rules protect against
wrong gradients; other messages of a worker (that it stops, or saves) are trusted.

Honesty:
- worker death: stops cleanly; the others leave within a second, with an error that names it; or goes on, with
  `on_death="continue"`
- pause: goes on; all wait until the worker wakes up, or stop when the time limit of waits (600 seconds) is over
- slow worker: goes on; everyone waits for it in every step
- corrupt gradient: goes on; up to `f` of them in a step do little harm, and gradients that are not finite do none
- resize: goes on; momenta of the old workers are averaged, and the rule has to tolerate `f` of the new number
- resume: goes on; with the same bits as an uninterrupted run, at the same number of workers

Paper: Karimireddy, He and Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021, Algorithm 1;
Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Byzantine machine learning made easy by resilient averaging of
momentums", ICML 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat
from quorate.strategies import register


@dataclass
class Momentum:
    """The momentum of this worker's own gradients."""

    m: Flat | None = kept("average")
    """None before the first step."""


@register("robust")
@dataclass(frozen=True, kw_only=True)
class Robust(Strategy):
    """Robust aggregation of the momenta of all workers, which tolerates some arbitrary vectors."""

    compresses = "gradients"
    reduction: ClassVar[Mapping[str, object]] = {"reduce": "trimmed-mean"}

    momentum: float = 0.9
    """beta: share of a worker's momentum that is kept in each step; with 0 workers send gradients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"momentum is {self.momentum}; it must be a factor (at least 0), and below 1")

    def start(self, worker: Worker) -> Momentum:
        return Momentum(m=None)

    def step(self, worker: Worker) -> None:
        state, g = worker.state, worker.gradient
        state.m = g if state.m is None else state.m.mul_(self.momentum).add_(g, alpha=1 - self.momentum)
        worker.update(worker.means.of(state.m).wait())
