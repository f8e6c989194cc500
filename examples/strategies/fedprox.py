"""FedProx: local steps that are held near the newest mean, so that workers with different data drift apart less.

Idea: Every worker takes H steps (`sync_every`) of its own optimizer; after each it moves a small part (`pull`) of the
way back to the newest mean of all. Then all replace their parameters by the mean. With `pull` 0 it is `local-sgd`.

Cost: With P workers and d parameters, 2 (P - 1) / P d numbers are sent every H steps, in the step, not overlapped.
Memory holds two copies of the parameters, and each step passes over them twice. All wait for the slowest, every H
steps.

When it loses: If workers have data alike, because it pulls back progress.

Honesty:
- worker death: goes on with `on_death="continue"`; else stops cleanly
- pause: goes on; all wait at the next mean
- slow worker: goes on; all wait at the next mean
- corrupt gradient: untested
- resize: goes on; from the mean of the old replicas
- resume: goes on; every worker with its own replica

Paper: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, Algorithm 2. There each worker
minimizes its loss plus mu / 2 times the squared distance from the newest mean, inexactly. Here `pull` is the learning
rate times mu, and that step is made by itself, whatever the optimizer.
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

    begun: Flat = kept("same")
    """The newest mean."""
    steps: int = kept("average", default=0)
    """Made since then."""


@strategies.register("fedprox")
@dataclass(frozen=True, kw_only=True)
class FedProx(Strategy):
    """Local steps that are held near the newest mean of all workers."""

    replicas = "meet"

    sync_every: int = 8
    """H: local steps between two means."""
    pull: float = 0.01
    """The part of its way back to the newest mean that a worker goes after each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sync_every < 1 or not 0 <= self.pull < 1:
            found = f"sync_every={self.sync_every}, pull={self.pull}"
            raise ConfigurationError(f"{found}: sync_every is from 1 on, and pull from 0 on and below 1")

    def start(self, worker: Worker) -> State:
        return State(begun=worker.parameters)

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        worker.update()
        x = worker.parameters
        worker.parameters = x + (s.begun - x) * self.pull
        s.steps += 1
        if s.steps >= self.sync_every:
            self.apply(worker, Mean(mean=worker.means.of(worker.parameters).wait()))

    def apply(self, worker: Worker, result: Mean) -> None:
        worker.parameters = worker.state.begun = result.mean
        worker.state.steps = 0

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is not None:
            worker.state.begun = at
