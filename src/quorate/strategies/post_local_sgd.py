"""Post-local SGD: synchronous until the learning rate first falls, local steps after that.

Idea: Replicas that take local steps drift apart quickly early in training, and hardly at all late. So all workers
average their gradients in every step, as under `all-reduce`, and then the strategy is `local-sgd`. The change is when
the learning rate falls below its highest value so far (`after="decay"`), or after a given number of steps.

Cost: At first as `all-reduce`, overlapped with the backward pass; then as `local-sgd`.

When it loses: Where the learning rate never falls and no number of steps is given: it stays `all-reduce`. Where most of
the time is spent before the first decay, it saves little.

Honesty:
- worker death: goes on; the next mean is over the remaining workers; the dead worker's steps since the last mean are
  lost; with `on_death="stop"` all stop
- pause: goes on; all wait at the next exchange until the worker wakes up, or stop when the time limit of waits is
  over
- slow worker: goes on; everyone waits for it, at first in every step, then at every mean
- corrupt gradient: untested; it reaches all workers in the next mean
- resize: goes on; from the mean of the old replicas
- resume: goes on; every worker with its own replica

Paper: Lin, Stich, Patel, Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020, section 3 and Algorithm 1
(ResNet-20 on CIFAR-10, 16 workers: H = 16 from the first decay on).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts import local_steps


@register("post-local-sgd")
@dataclass(frozen=True, kw_only=True)
class PostLocalSGD(local_steps.LocalStepSettings):
    """Synchronous until the learning rate first falls, local steps after that."""

    _sparse_gradients = "both"

    sync_every: int | str = 16
    after: int | Literal["decay"] = "decay"
    """Number of synchronous steps at the start, or "decay": until the learning rate first decreases."""

    def __post_init__(self) -> None:
        super().__post_init__()
        local_steps.check_after(self.after)

    def start(self, worker: Worker) -> local_steps.SynchronousPhase:
        return local_steps.SynchronousPhase(is_local=local_steps.begins_local(worker, self.after))

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.means.step_alone(worker.state.is_local)

    def backward(self, worker: Worker) -> None:
        worker.state.agree_on_gradient(worker)

    def step(self, worker: Worker) -> None:
        state: local_steps.SynchronousPhase = worker.state
        worker.update()
        if not state.is_local:
            if state.is_over(worker, self.after):
                x, _ = self.contribution(worker)
                self.apply(worker, local_steps.mean_of_all(worker, x, 1.0))
            return
        state.count(worker, self.period)
        if state.is_due(worker, self.period):
            self.apply(worker, local_steps.mean_of_all(worker, *self.contribution(worker)))

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        return worker.replica.read(moments=self.momentum == "average"), worker.state.weight(self.period)

    def apply(self, worker: Worker, result: Mean) -> None:
        local_steps.take_mean(worker, result.mean, self.momentum)
        worker.state.restart()
        worker.state.turn_local(worker)
