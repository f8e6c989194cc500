"""Local SGD: workers take steps alone, and their parameters are averaged every H steps.

Idea: Every worker takes H steps (`sync_every`) of its own optimizer on its own data; then all replace their parameters
by the mean of all. With H = 1 and plain SGD, or SGD whose momentum is averaged too, it is synchronous SGD. If workers
differ in speed, H may be a number of examples, or a time. Each worker then joins the mean after its first step beyond
H, and waits for at most one step of the slowest. Its replica is weighted by the number of its steps.

Three treatments of the optimizer's state (momenta) are three algorithms. `keep` leaves each worker its own, `average`
averages it with the parameters, `reset` clears it after every mean.

Cost: With P workers and d parameters, 2 (P - 1) / P d numbers are sent every H steps, after the step, not overlapped.
If the optimizer's vectors are averaged, this is multiplied by 1 + their number. Memory meanwhile holds a copy of the
parameters. All wait for the slowest, every H steps. At an evaluation and at the end there is one more mean.

When it loses: Where replicas drift apart: many steps at a high learning rate, or data that differs between workers. The
mean of P workers after H steps learns less per example than P H synchronous steps at the same learning rate, most of
all early in training. Weight decay and clipping act H times, on each replica by itself.

Honesty:
- worker death: goes on; the next mean is over the remaining workers; the dead worker's steps since the last mean are
  lost; with `on_death="stop"` all stop
- pause: goes on; all wait at the next mean until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it at every mean, unless `sync_every` is a time
- corrupt gradient: untested; it corrupts one replica, and through it the next mean
- resize: goes on; from the mean of the old replicas
- resume: goes on; every worker with its own replica

Paper: S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019, Algorithm 1. Weights by work done are
those of federated averaging (McMahan et al., AISTATS 2017).
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.local_steps import LocalSteps, LocalStepSettings, mean_of_all, take_mean


@register("local-sgd")
@dataclass(frozen=True, kw_only=True)
class LocalSGD(LocalStepSettings):
    """Workers take steps alone, and their parameters are averaged every `sync_every` steps."""

    replicas = "meet"
    _sparse_gradients = "changes"

    def start(self, worker: Worker) -> LocalSteps:
        return LocalSteps()

    def step(self, worker: Worker) -> None:
        state: LocalSteps = worker.state
        worker.update()  # line 4
        state.count(worker, self.period)
        if state.is_due(worker, self.period):  # line 5
            self.apply(worker, mean_of_all(worker, *self.contribution(worker)))  # line 6

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        return worker.replica.read(moments=self.momentum == "average"), worker.state.weight(self.period)

    def apply(self, worker: Worker, result: Mean) -> None:
        take_mean(worker, result.mean, self.momentum)
        worker.state.restart()
