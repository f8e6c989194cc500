"""Symmetric EASGD: all workers are pulled towards a centre at once, and the centre towards their mean.

Idea: The synchronous form of `easgd`. Before every tau-th step (`sync_every`) the parameters of all workers move a part
alpha = beta / P towards the centre. The centre moves a part P alpha towards the mean of all. Every worker has the same
centre and no server is needed: the exchange is one all-reduce. The centre is evaluated and saved, and is the result.

Cost: With P workers and d parameters, 2 (P - 1) / P d numbers are sent every tau steps, during the step, not
overlapped; two copies of the parameters in memory. All wait for the slowest, every tau steps.

When it loses: Where workers differ in speed: under `easgd` no worker waits. Against `local-sgd` where replicas have
little to explore: the centre lags behind them.

Honesty:
- worker death: stops cleanly; with `on_death="continue"` the others go on from the next mean
- pause: goes on; all wait at the next mean
- slow worker: goes on; all wait at the next mean
- corrupt gradient: untested; it corrupts one replica, and with it the centre
- resize: goes on; the centre stays, and every worker starts at the mean of the old replicas
- resume: goes on; the centre, and every worker with its own replica

Paper: Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NIPS 2015, Equations 5 and 6 (all workers
at once, every tau steps). x~ is `centre`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.edits import WithPoint
from quorate.strategies.parts.elastic import ElasticSettings


@dataclass(kw_only=True)
class State(WithPoint):
    """The centre, and the number of steps."""

    centre: Flat = kept("same")
    steps: int = kept("same", default=0)
    """Made by all workers, whether they met or not."""


@register("symmetric-easgd")
@dataclass(frozen=True, kw_only=True)
class SymmetricEASGD(ElasticSettings):
    """Every `sync_every` steps workers are pulled towards a centre, and the centre towards their mean."""

    replicas = "differ"

    def start(self, worker: Worker) -> State:
        beta = self.strength(worker) * worker.size
        if beta > 1 + 1e-9:
            most = f"1 / {worker.size}"
            raise ConfigurationError(f"alpha is {self.alpha!r} on {worker.size} workers; it must be at most {most}")
        return State(centre=worker.parameters)

    def step(self, worker: Worker) -> None:
        if worker.state.steps % self.sync_every == 0:  # at the parameters that the gradient was computed at
            self.apply(worker, Mean(mean=worker.means.of(worker.parameters).wait()))
        worker.update()
        worker.state.steps += 1

    def apply(self, worker: Worker, result: Mean) -> None:
        x, centre, alpha = worker.parameters, worker.state.centre, self.strength(worker)
        worker.parameters = x + (centre - x) * alpha  # equation 5
        worker.state.centre = centre + (result.mean - centre) * (alpha * worker.size)  # equation 6

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.state.centre, 1.0

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is not None:
            worker.state.centre = at
