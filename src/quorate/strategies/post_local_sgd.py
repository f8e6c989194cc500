"""Post-local SGD: synchronous until the learning rate first falls, local steps from then on.

Idea: Early in training replicas that step by themselves drift apart quickly, late they hardly do. So all workers take
the mean of their gradients in every step, as under `all-reduce`, until the learning rate has fallen below the highest
it had (`after="decay"`), or for a number of steps; then the strategy is `local-sgd`.

Cost: As `all-reduce` first, overlapped with the backward pass; as `local-sgd` then.

When it loses: Where the learning rate never falls and no number of steps is given: then it is `all-reduce`. Where
most of the time is spent before the first decay, it saves little.

Honesty:
- worker death: goes on; the next mean is of those that are left, and what is lost are its steps since the last one;
  `on_death="stop"` makes all stop
- pause: goes on; all wait at the next exchange until the worker wakes up, or stop when the time limit of waits is
  over
- slow worker: goes on; everyone waits for it, in every step first, at every mean then
- corrupt gradient: untested; it spreads to all in the next mean
- resize: goes on; from the mean of the old replicas
- resume: goes on; every worker with its own replica

Paper: Lin, Stich, Patel, Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020, section 3 and Algorithm 1
(ResNet-20 on CIFAR-10, 16 workers: H = 16 from the first decay on).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.local_sgd import LocalSGD
from quorate.strategies.parts.local_steps import LocalSteps


@dataclass
class State(LocalSteps):
    """What `local-sgd` keeps, and which phase it is."""

    is_local: bool = kept("same", default=False)
    highest_rate: float = kept("same", default=0.0)


@register("post-local-sgd")
@dataclass(frozen=True, kw_only=True)
class PostLocalSGD(LocalSGD):
    """Synchronous until the learning rate first falls, local steps from then on."""

    sync_every: int | str = 16
    """As of `local-sgd`."""
    after: int | Literal["decay"] = "decay"
    """The number of synchronous steps; or those until the learning rate is lower than it was."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.after, int) and self.after < 0:
            raise ConfigurationError(f'after is {self.after}; it is a number of steps from 0 on, or "decay"')

    def start(self, worker: Worker) -> State:
        worker.means.step_alone(self.after == 0)
        if self.after == 1:
            worker.means.vote()
        return State(is_local=self.after == 0)

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.means.step_alone(worker.state.is_local)

    def backward(self, worker: Worker) -> None:
        if not worker.state.is_local:
            worker.gradient = worker.means.of_gradient().wait()

    def step(self, worker: Worker) -> None:
        state: State = worker.state
        if state.is_local:
            super().step(worker)
            return
        worker.update()
        rate = max(worker.replica.learning_rates)
        state.highest_rate = max(state.highest_rate, rate)
        if rate < state.highest_rate if self.after == "decay" else worker.step >= self.after - 1:
            worker.means.vote()  # some may be further than others: all turn in the same exchange
        if worker.means.has_voted:
            mine, _ = self.contribution(worker)
            self.apply(worker, Mean(mean=worker.means.of(mine).wait()))

    def apply(self, worker: Worker, one: Mean) -> None:
        super().apply(worker, one)
        worker.state.is_local = True
        worker.means.step_alone(True)
