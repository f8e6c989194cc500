"""Adaptive local SGD: the number of local steps follows how far the replicas drift apart.

Idea: As `local-sgd`, but each mean also gives two lengths: how far the replicas have moved on average since the last
mean, and how far their mean has moved. Their difference, mean |d_i|^2 - |mean d|^2, is the drift: the movement in
different directions. Its share of mean |d_i|^2 is between 0 (all replicas moved the same way) and 1 (the mean did not
move), and grows with the number of steps H. If the share is above `drift`, H is divided by `factor`; if it is below
half of `drift`, H is multiplied by `factor`; H stays within `least` and `most`. All workers compute H from the same
numbers, so all have the same H.

Cost: As `local-sgd`, with one more copy of the parameters (the last common point), and a pass over them at every mean.

When it loses: With few workers and small batches the drift comes mostly from gradient noise, not from the data. Its
share is then near (P - 1) / P from the first step, and H stays at `least` unless `drift` is set higher.

Honesty:
- worker death: goes on; the next mean is over the remaining workers; the dead worker's steps since the last mean are
  lost; with `on_death="stop"` all stop
- pause: goes on; all wait at the next mean until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it at every mean
- corrupt gradient: untested; it corrupts one replica, and through it the next mean
- resize: goes on; from the mean of the old replicas
- resume: goes on; every worker with its own replica

Paper: The rule is ours, after Kamp et al., "Efficient decentralized deep learning by dynamic model averaging", ECML
PKDD 2018 (average when the divergence is above a bound), and Wang and Joshi, "Adaptive communication strategies to
achieve the best error-runtime trade-off in local-update SGD", MLSys 2019 (change H as training goes on).
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.device_copies import values_of, widest
from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.local_steps import LocalSteps, LocalStepSettings, Period, mean_of_all, take_mean


@dataclass(kw_only=True)
class State(LocalSteps):
    """The local steps, and what H is computed from."""

    before: Flat = kept("same")
    """The parameters at which all workers began."""
    period: int = kept("same")
    """H."""
    drift: float | None = kept("same", default=None)
    """The newest share."""


@register("adaptive-local-sgd")
@dataclass(frozen=True, kw_only=True)
class AdaptiveLocalSGD(LocalStepSettings):
    """The number of local steps follows how far the replicas drift apart."""

    _sparse_gradients = "changes"

    sync_every: int = 4
    """Initial number of local steps, H."""
    drift: float = 0.5
    """Target share of the workers' movement that goes in different directions."""
    factor: float = 2.0
    """Factor by which H is multiplied or divided."""
    least: int = 1
    """Minimum of H."""
    most: int = 512
    """Maximum of H."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.drift < 1 < self.factor and 1 <= self.least <= self.sync_every <= self.most):
            settings = f"drift={self.drift}, factor={self.factor}, least={self.least}, most={self.most}"
            raise ConfigurationError(
                f"{settings}: drift must be between 0 and 1, factor above 1, and 1 <= least <= sync_every <= most"
            )

    @property
    def acts_on_pieces(self) -> bool:
        return False

    def start(self, worker: Worker) -> State:
        return State(before=worker.parameters, period=self.sync_every)

    def step(self, worker: Worker) -> None:
        state: State = worker.state
        period = Period(state.period, "steps")
        worker.update()
        state.count(worker, period)
        if state.is_due(worker, period):
            self.apply(worker, mean_of_all(worker, *self.contribution(worker)))

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        state: State = worker.state
        went = _square(worker.parameters - state.before)
        x = worker.replica.read(moments=self.momentum == "average", numbers=(went,))
        return x, state.weight(Period(state.period, "steps"))

    def apply(self, worker: Worker, result: Mean) -> None:
        state: State = worker.state
        take_mean(worker, result.mean, self.momentum)
        state.restart()
        reached = worker.replica.parameters_of(result.mean)
        (went,) = worker.replica.numbers_of(result.mean)
        if went > 0:
            state.drift = max(0.0, 1 - _square(reached - state.before) / went)
            if state.drift > self.drift:
                state.period = max(self.least, int(state.period / self.factor))
            elif state.drift < self.drift / 2:
                state.period = min(self.most, int(state.period * self.factor) or 1)
        state.before = reached


def _square(x: Flat) -> float:
    wide = (part.abs() if part.is_complex() else part for part in x.segments())
    return sum(values_of([part.to(widest(part.device)).square().sum() for part in wide]))
