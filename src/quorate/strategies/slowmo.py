"""SlowMo: local steps, and a slow momentum over their means.

Idea: Workers take local steps and average their parameters every `sync_every` steps, as in `local-sgd`. Every
`slow_every` means, the movement from the last such point x to the mean m is treated as a gradient, at the learning rate
eta of the local steps. The momentum u becomes beta u + (x - m) / eta, and all continue from x - alpha eta u. With alpha
= 1 and beta = 0 it is `local-sgd`, bit for bit.

eta is the mean learning rate over the steps since then, for each parameter group, agreed on together with the
parameters. If eta is 0 (the first step of a warm-up, the end of a schedule), x - m is not divided by it. Then u becomes
beta u, and all continue from (1 - alpha) x + alpha m.

Cost: As `local-sgd`; two more copies of the parameters in memory (x and u), in float32, and a few passes over them
every `slow_every` means.

When it loses: With few workers, whose means have little noise that momentum could reduce. The authors' best beta for
WMT16 En-De is 0 below 4 workers, 0.2 at 4, 0.5 at 8, 0.6 at 16. beta needs tuning.

Honesty:
- worker death: goes on; the next mean is over the remaining workers; the dead worker's steps since the last mean are
  lost; with `on_death="stop"` all stop
- pause: goes on; all wait at the next mean until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it at every mean, unless `sync_every` is a time
- corrupt gradient: untested; it corrupts one replica, and through it the next mean
- resize: goes on; from the mean of the old replicas, with the slow momentum
- resume: goes on; every worker with its own replica, and the slow momentum

Paper: Wang, Tantia, Ballas, Rabbat, "SlowMo: improving communication-efficient distributed SGD with slow momentum",
ICLR 2020, Algorithm 1. Frequencies are the defaults of the authors' implementation in fairscale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.local_steps import LocalSteps, LocalStepSettings, mean_of_all, take_mean


@dataclass(kw_only=True)
class State(LocalSteps):
    """The local steps, and the slow momentum."""

    before: Flat = kept("same")
    """x."""
    velocity: Flat = kept("same")
    """u."""
    rates: list[float] = kept("average")
    """Learning rates of the local steps since the last mean, added up, by parameter group."""
    agreed_rates: list[float] = kept("same")
    """The agreed rates of the means since the last slow step, added up."""
    means: int = kept("same", default=0)


@register("slowmo")
@dataclass(frozen=True, kw_only=True)
class SlowMo(LocalStepSettings):
    """Local steps, with a slow momentum over their means."""

    sync_every: int | str = 3
    slow_every: int = 16
    """Number of means between two slow steps."""
    alpha: float = 1.0
    """The slow learning rate."""
    beta: float = 0.5
    """The slow momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slow_every < 1 or not 0 <= self.beta < 1 or not self.alpha > 0:
            settings = f"slow_every={self.slow_every}, alpha={self.alpha}, beta={self.beta}"
            raise ConfigurationError(f"{settings}: slow_every is from 1 on, alpha above 0, and beta from 0 to below 1")

    def start(self, worker: Worker) -> State:
        nothing = [0.0] * len(worker.replica.learning_rates)
        x = worker.parameters
        return State(before=x, velocity=x * 0.0, rates=nothing, agreed_rates=nothing)

    def step(self, worker: Worker) -> None:
        state: State = worker.state
        state.rates = _added(state.rates, worker.replica.learning_rates)
        worker.update()
        state.count(worker, self.period)
        if state.is_due(worker, self.period):
            self.apply(worker, mean_of_all(worker, *self.contribution(worker)))

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is not None:
            worker.state.before = at

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        state: State = worker.state
        rates = [rate / max(1.0, state.steps) for rate in state.rates]
        x = worker.replica.read(moments=self.momentum == "average", numbers=rates)
        return x, state.weight(self.period)

    def apply(self, worker: Worker, result: Mean) -> None:
        state: State = worker.state
        take_mean(worker, result.mean, self.momentum)
        state.restart()
        state.rates = [0.0] * len(state.rates)
        state.agreed_rates = _added(state.agreed_rates, worker.replica.numbers_of(result.mean))
        state.means += 1
        if state.means < self.slow_every:
            return
        x, u, m = state.before, state.velocity, worker.replica.parameters_of(result.mean)
        etas = [rate / state.means for rate in state.agreed_rates]
        kick = worker.replica.by_group(u, [self.alpha * eta * self.beta for eta in etas])
        state.before = x * (1 - self.alpha) + m * self.alpha - kick  # line 8
        delta = worker.replica.by_group(x - m, [1 / eta if eta > 0 else 0.0 for eta in etas])
        state.velocity = u * self.beta + delta  # line 7
        worker.parameters = state.before
        state.agreed_rates, state.means = [0.0] * len(etas), 0


def _added(result: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(result, other, strict=True)]
