"""DiLoCo: hundreds of local steps of the user's optimizer, then one step of an outer one on how far they went.

Idea: Every worker takes H steps (`sync_every`) of its own optimizer (AdamW as published), which is never averaged.
The way that the replicas went in the mean, from the point where all began, is the gradient of an outer optimizer (SGD
with Nesterov momentum), whose step is where all go on. `after` steps may be synchronous first, as under `all-reduce`.
With an outer rate of 1 and no momentum it is `local-sgd`.

Streaming: the parameters may be cut into `fragments` of about equal bytes, each with an outer optimizer and a point of
its own, which come to their means in turn, H / K steps apart: the same numbers in K smaller messages. And the mean may
be under way while the next `overlap` steps are made: then each worker goes on from `merge` times where it is by then
and 1 - `merge` times the outer step's point. The way is always that from the point all have in common.

Cost: With P workers and d parameters, 2 (P - 1) / P d numbers are sent every H steps, after the step; two copies of
the parameters in memory (where all began, and the outer momentum), in float32, off the device with
`outer_device="cpu"`. All wait for the slowest, every H steps; with fragments K times as often; with `overlap` when they
take a mean in, and under `on_death="stop"` only for who is more than `overlap` steps behind. At an evaluation and at
the end there is one outer step more.

When it loses: Early in training, and with data that differs much between workers. With few local steps, or some ten
outer ones: the published outer step is made for more than a hundred of each. Its first goes 1.33 times the mean way,
and in the end each goes 7 times; with few of them that overshoots, and an outer rate of 1 with a momentum of 0.5 to 0.7
did better: with thirty outer steps two workers came within 1 % of synchronous ones (docs/benchmarks.md). Where batches
are small and gradients noisy, it stays behind. Where evaluations are more frequent than means, these set the period.

Honesty:
- worker death: goes on; the next mean is of those that are left, and what is lost are its steps since the last one;
  `on_death="stop"` makes all stop
- pause: goes on; all wait at the next mean until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it at every mean, unless `sync_every` is a time
- corrupt gradient: untested; it spoils one replica, and with it the next outer step
- resize: goes on; from the mean of the old replicas, with the outer optimizer's state
- resume: goes on; every worker with its own replica, and the outer optimizer's state; a mean that was under way is
  left out, and what it held counts in the fragment's next one

Paper: Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023, Algorithm 1 (H =
500, outer rate 0.7, outer momentum 0.9). Fragments, overlap and merging: Douillard et al., "Streaming DiLoCo with
overlapping communication", 2025, Algorithm 2. Outer Adam and Adagrad are those of Reddi et al., "Adaptive federated
optimization", ICLR 2021, with bias correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.errors import ConfigurationError
from quorate.strategies import register
from quorate.strategies.parts.local_steps import every
from quorate.strategies.parts.outer_steps import OuterSteps
from quorate.strategies.streaming import Streaming


@register("diloco")
@dataclass(frozen=True, kw_only=True)
class DiLoCo(Streaming):
    """Hundreds of local steps, then one step of an outer optimizer on how far they went."""

    sync_every: int | str = 500
    """H: as of `local-sgd`; of each fragment."""
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
        if self.fragments < 1 or self.overlap < 0 or not 0 <= self.merge < 1:
            found = f"fragments={self.fragments}, overlap={self.overlap}, merge={self.merge}"
            raise ConfigurationError(f"{found}: fragments is from 1 on, overlap from 0 on, and merge from 0 to below 1")
        period = every(self.sync_every)
        if period.unit == "steps" and (period.count % self.fragments or self.overlap >= period.count / self.fragments):
            found = f"sync_every={self.sync_every}, fragments={self.fragments}, overlap={self.overlap}"
            raise ConfigurationError(f"{found}: sync_every is a multiple of fragments, and overlap below their ratio")

    @property
    def outer_steps(self) -> OuterSteps:
        options: dict[str, Any] = {"lr": self.outer_rate, "eps": 1e-3}
        if self.outer == "sgd":
            is_nesterov = self.nesterov and self.outer_momentum > 0
            options = {"lr": self.outer_rate, "momentum": self.outer_momentum, "nesterov": is_nesterov}
        elif self.outer == "adam":
            options["betas"] = (self.outer_momentum, 0.99)
        is_on_cpu = self.outer_device == "cpu"
        return OuterSteps(
            kind=self.outer, options=options, is_on_cpu=is_on_cpu, momentum=self.momentum, merge=self.merge
        )
