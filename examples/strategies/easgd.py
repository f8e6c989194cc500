"""Elastic averaging: workers are drawn to a centre, and the centre to the mean of the workers.

Idea: Every worker takes steps of its own optimizer. Every tau-th (`sync_every`), its parameters go a part alpha =
beta / P of the way to the centre, and the centre goes a part `beta` of the way to the mean of all workers. Workers
may explore: they are never made equal. The centre is what is evaluated, and the result.

Cost: With P workers and d parameters, 2 (P - 1) / P d numbers are sent every tau steps, in the step, not
overlapped; two copies of the parameters in memory. All wait for the slowest, every tau steps.

When it loses: Against `local-sgd` where replicas have little to explore: the centre lags behind them.

Honesty:
- worker death: goes on with `on_death="continue"`; else stops cleanly
- pause: goes on; all wait at the next mean
- slow worker: goes on; all wait at the next mean
- corrupt gradient: untested
- resize: goes on; the centre stays, and every worker begins at a replica of before
- resume: goes on; every worker with its own replica

Paper: S. Zhang, A. Choromanska, Y. LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015, equations 5 and 6
(all workers at once, each tau steps). x~ is `centre`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate import strategies
from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat


@dataclass(kw_only=True)
class State:
    """What is remembered between two steps."""

    centre: Flat = kept("same")
    steps: int = kept("same", default=0)
    """Made by all workers, whether they met or not."""


@strategies.register("easgd")
@dataclass(frozen=True, kw_only=True)
class EASGD(Strategy):
    """Workers are drawn to a centre every `sync_every` steps, and the centre to their mean."""

    replicas = "differ"

    sync_every: int = 10
    """tau: local steps between two moves of the centre."""
    beta: float = 0.9
    """The part of its way to the mean of all workers that the centre goes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sync_every < 1 or not 0 < self.beta <= 1:
            found = f"sync_every={self.sync_every}, beta={self.beta}"
            raise ConfigurationError(f"{found}: sync_every is from 1 on, and beta above 0 and at most 1")

    def start(self, worker: Worker) -> State:
        return State(centre=worker.parameters)

    def step(self, worker: Worker) -> None:
        if worker.state.steps % self.sync_every == 0:  # at the parameters that the gradient was computed at
            self.apply(worker, Mean(mean=worker.means.of(worker.parameters).wait()))
        worker.update()
        worker.state.steps += 1

    def apply(self, worker: Worker, one: Mean) -> None:
        x, centre = worker.parameters, worker.state.centre
        worker.parameters = x + (centre - x) * (self.beta / worker.size)  # equation 5
        worker.state.centre = centre + (one.mean - centre) * self.beta  # equation 6

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.state.centre, 1.0

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is not None:
            worker.state.centre = at
