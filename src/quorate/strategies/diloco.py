"""DiLoCo: hundreds of local steps of the user's optimizer, then one outer step along their mean movement.

Idea: Every worker takes H steps (`sync_every`) of its own optimizer (AdamW as published), whose state is never
averaged. The mean movement of the replicas from their common point is the gradient of an outer optimizer (SGD with
Nesterov momentum); its step gives the new common point. The first `after` steps may be synchronous, as under
`all-reduce`. With an outer rate of 1 and no momentum it is `local-sgd`.

With `fragments` or `overlap` it is Streaming DiLoCo: see `streaming-diloco`.

Cost: With P workers and d parameters, 2 (P - 1) / P d numbers are sent every H steps, after the step. Memory holds two
and a half copies of the parameters: the common point, the outer momentum, and the newest outer gradient in bfloat16.
They are off the device with `outer_device="cpu"`. With `overlap` there is one more copy of each fragment whose mean is
under way. All wait for the slowest every H steps, and K times as often with fragments. With `overlap` they wait only
when they apply a mean, and under `on_death="stop"` only for a worker more than `overlap` steps behind. At an evaluation
and at the end there is one more outer step.

When it loses: Early in training, and with data that differs much between workers. With few local steps or only some ten
outer steps: the published outer step is made for more than a hundred of each. Its first step is 1.33 times the mean
movement, and a late one 7 times. With few outer steps this overshoots, so with fewer than 300 local steps the outer
rate is 1 and the momentum 0.3 to 0.5 unless they are set. If the loss nevertheless rises above that of the first
period, one sentence reports it. With thirty outer steps two workers came within 1 % of synchronous ones
(docs/benchmarks/local-steps.md). If batches are small and gradients noisy. If evaluations are more frequent than means,
they set the period.

Honesty:
- worker death: goes on; the next mean is over the remaining workers; the dead worker's steps since the last mean are
  lost; with `on_death="stop"` all stop
- pause: goes on; all wait at the next mean until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it at every mean, unless `sync_every` is a time
- corrupt gradient: untested; it corrupts one replica, and through it the next outer step
- resize: goes on; from the mean of the old replicas, with the outer optimizer's state
- resume: goes on; every worker with its own replica, and the outer optimizer's state. A mean that was under way begins
  again, with the same bits; after a resize, and with error feedback, its content counts in the fragment's next mean

Paper: Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023, Algorithm 1 (H =
500, outer rate 0.7, outer momentum 0.9). Fragments, overlap and merging: Douillard et al., "Streaming DiLoCo with
overlapping communication", 2025, Algorithm 2. Outer Adam and Adagrad are those of Reddi et al., "Adaptive federated
optimization", ICLR 2021, with bias correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts import outer_steps
from quorate.strategies.parts.fragments import check_fragments
from quorate.strategies.parts.local_steps import LocalStepSettings, begins_local, check_after, mean_of_all, take_mean


@register("diloco")
@dataclass(frozen=True, kw_only=True)
class DiLoCo(LocalStepSettings, outer_steps.OuterStepSettings):
    """Hundreds of local steps, then one step of an outer optimizer on the change of the parameters."""

    compresses = "deltas"

    sync_every: int | str = 500
    """H, as in `local-sgd`, for each fragment."""
    after: int | Literal["decay"] = 0
    """Number of synchronous steps before the first local step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_after(self.after)
        check_fragments(self.sync_every, self.fragments, self.overlap, self.merge)

    @property
    def acts_on_pieces(self) -> bool:
        return super().acts_on_pieces and self.outer_gain == "set"

    @property
    def lets_join(self) -> bool:
        return self.overlap == 0

    def start(self, worker: Worker) -> outer_steps.OuterState:
        is_local = begins_local(worker, self.after)
        cut: dict[str, Any] = {"by": self.fragments_by}
        return outer_steps.outer_state(
            worker.parameters, self.fragments, self.outer_optimizer, **cut, is_local=is_local
        )

    def backward(self, worker: Worker) -> None:
        worker.state.agree_on_gradient(worker)

    def step(self, worker: Worker) -> None:
        state: outer_steps.OuterState = worker.state
        worker.update()  # theta_i <- InnerOpt(theta_i, g_i)
        if not state.is_local:
            if state.is_over(worker, self.after):
                self.apply(worker, mean_of_all(worker, self.contribution(worker)[0], 1.0))
        elif self.fragments > 1 or self.overlap:
            outer_steps.stream(worker, self)
        else:
            state.count_step(worker, self.period)
            if state.is_due(worker, self.period):  # every H steps
                x, weight, _ = state.give(worker, self.period, moments=self.momentum == "average")
                mean = worker.means.of(x, weight=weight).wait()  # Delta <- 1/k sum of (theta - theta_i)
                outer_steps.outer_step(worker, self, 0, mean)  # theta <- OuterOpt(theta, Delta), where all go on

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        state, has_moments = worker.state, self.momentum == "average"
        if not state.is_local:
            return worker.replica.read(moments=has_moments), 0.0
        outer_steps.take_means(worker, self, at_pause=True)  # in one order on all workers, also on one that pauses
        x, weight, _ = state.give(worker, self.period, moments=has_moments)
        return x, weight

    def apply(self, worker: Worker, result: Mean) -> None:
        if worker.state.is_local:
            outer_steps.outer_step(worker, self, worker.state.newest, result.mean)
        else:  # after the last synchronous step
            take_mean(worker, result.mean, self.momentum)
            worker.state.begin_outer_steps(worker, worker.replica.parameters_of(result.mean))

    def pause(self, worker: Worker) -> None:
        if worker.state.is_local and (self.fragments > 1 or self.overlap):
            for _ in range(self.fragments):
                self.apply(worker, mean_of_all(worker, *self.contribution(worker)))

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.restore(worker, at)
        if at is None and not worker.state.under_way:
            outer_steps.begin_means_again(worker)
