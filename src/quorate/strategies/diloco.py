"""DiLoCo: hundreds of local steps of the user's optimizer, then one step of an outer one on how far they went.

Idea: Every worker takes H steps (`sync_every`) of its own optimizer (AdamW as published), which is never averaged.
The way that the replicas went in the mean, from the point where all began, is the gradient of an outer optimizer (SGD
with Nesterov momentum), whose step is where all go on. `after` steps may be synchronous first, as under `all-reduce`.
With an outer rate of 1 and no momentum it is `local-sgd`.

Cost: With P workers and d parameters, 2 (P - 1) / P d numbers are sent every H steps, after the step; two copies of
the parameters in memory (where all began, and the outer momentum), in float32, off the device with
`outer_device="cpu"`. All wait for the slowest, every H steps. At an evaluation and at the end there is one outer step
more.

When it loses: Early in training, and with data that differs much between workers. With few local steps: the outer
rate and momentum are made for hundreds. Where evaluations are more frequent than means, these set the period.

Honesty:
- worker death: stops cleanly; the others leave within a second of their next mean, with an error that names the dead
  worker
- pause: goes on; all wait at the next mean until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it at every mean, unless `sync_every` is a time
- corrupt gradient: untested; it spoils one replica, and with it the next outer step
- resize: goes on; from the mean of the old replicas, with the outer optimizer's state
- resume: goes on; every worker with its own replica, and the outer optimizer's state

Paper: Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023, Algorithm 1 (H =
500, outer rate 0.7, outer momentum 0.9). Outer Adam and Adagrad are those of Reddi et al., "Adaptive federated
optimization", ICLR 2021, with bias correction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.post_local_sgd import PostLocalSGD
from quorate.strategies.post_local_sgd import State as PostLocalState


@dataclass(kw_only=True)
class State(PostLocalState):
    """What local steps keep, and the outer optimizer."""

    before: Flat | None = kept("same")
    """Where all began; None while steps are synchronous."""
    memory: dict[str, Any] = kept("same")
    """Of the outer optimizer."""


@register("diloco")
@dataclass(frozen=True, kw_only=True)
class DiLoCo(PostLocalSGD):
    """Hundreds of local steps, then one step of an outer optimizer on how far they went."""

    sync_every: int | str = 500
    """H: as of `local-sgd`."""
    after: int | Literal["decay"] = 0
    """Synchronous steps before the first local one."""
    outer: Literal["adagrad", "adam", "sgd"] = "sgd"
    """The outer optimizer."""
    outer_rate: float = 0.7
    """Its learning rate."""
    outer_momentum: float = 0.9
    """Its momentum; of Adam the first beta."""
    nesterov: bool = True
    """Whether its momentum is Nesterov's (SGD only)."""
    outer_device: Literal["own", "cpu"] = "own"
    """Where the outer optimizer and its copy of the parameters are: with the model, or in the host's memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.outer_rate > 0 or not 0 <= self.outer_momentum < 1:
            found = f"outer_rate={self.outer_rate}, outer_momentum={self.outer_momentum}"
            raise ConfigurationError(f"{found}: the rate is above 0, and the momentum from 0 to below 1")

    @property
    def options(self) -> dict[str, Any]:
        """Of the outer optimizer, as torch has them."""
        if self.outer == "sgd":
            is_nesterov = self.nesterov and self.outer_momentum > 0
            return {"lr": self.outer_rate, "momentum": self.outer_momentum, "nesterov": is_nesterov}
        if self.outer == "adam":
            return {"lr": self.outer_rate, "betas": (self.outer_momentum, 0.99), "eps": 1e-3}
        return {"lr": self.outer_rate, "eps": 1e-3}

    def start(self, worker: Worker) -> State:
        is_local = super().start(worker).is_local
        return State(is_local=is_local, before=self._kept(worker.parameters) if is_local else None, memory={})

    def _kept(self, x: Flat) -> Flat:
        return x.map(torch.Tensor.cpu) if self.outer_device == "cpu" else x

    def follow(self, worker: Worker, mean: Flat) -> None:
        state: State = worker.state
        super().follow(worker, mean)
        reached = self._kept(worker.replica.parameters_of(mean))
        if state.before is None:  # the last synchronous step
            state.before = reached
            return
        way = state.before - reached
        worker.updater(state.before, state.memory, kind=self.outer, **self.options)(way)  # line 14
        worker.parameters = state.before
