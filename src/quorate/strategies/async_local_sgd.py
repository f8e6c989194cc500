"""Asynchronous local SGD: each learner's outer gradient is applied when it arrives, and no learner waits.

Idea: Every learner takes H steps of its own optimizer, sends how far it has moved (its outer gradient), reads the
current common point, and goes on. Each outer gradient moves the common point at once. Momentum applied to each single
outer gradient makes training worse, so it is delayed (delayed Nesterov, `parts/learners.py`):

    every g:    x = x - lr g / N, s = s + g / N
    every N-th: m = beta m + s, x = x - lr beta m, s = 0

Alternatively each outer gradient is a step of Adam (`outer="adam"`), which can give stale outer gradients less weight
(`late="cosine"`, `parts/outer_gradients.py`). With `late="turn"` a stale outer gradient keeps its length, and each of
its tensors is turned towards the outer momentum.

With `dynamic` a slow learner takes fewer steps per period, so that all learners send about equally often. The common
point and its momentum are the same on all learners, bit for bit: outer gradients are applied in rounds, and any learner
can start a round.

A learner is one worker, or several workers that average their gradients in every step (`learners`).

Cost: With P learners and d parameters, 2 (P - 1) d numbers through the leading worker for every round of one or more
outer gradients. Memory holds four copies of the parameters (the common point, the momentum and its sum, the outer
gradient). A learner waits only for the exchange of its own round. With G workers in a learner, each sends (G - 1) d
numbers in every step, after the backward pass; on one host they lie in shared memory.

When it loses: If learners are equally fast and nothing fails, `diloco` has no stale outer gradients. With P learners
each outer gradient is P - 1 others stale. With one learner of four four times slower, `late="turn"` had 0.99 and 1.01
of the loss of `late="cosine"` in two tasks (docs/benchmarks/late-workers.md).

Honesty:
- worker death: goes on; what it had not yet sent is lost, or kept by the other workers of its learner
- pause: goes on; no learner waits for it, and it continues from the newest common point
- slow worker: goes on; it takes fewer steps per period (`dynamic`), or sends less often
- corrupt gradient: untested; it corrupts one replica, and through it an outer step
- resize: goes on; from the common point, with its momentum
- resume: goes on; every learner with its own replica, and its progress since it last sent

Paper: Liu et al., "Asynchronous local-SGD training for language modeling", 2024 (arXiv 2401.09135), Algorithms 3
(delayed Nesterov) and 4 (dynamic local updates), after public descriptions. `late="cosine"` with `outer="adam"`: Shah
and Sun, "Cosine-gated Adam-decay", 2026 (arXiv 2605.09126), after its abstract: the formula of the gate and its
defaults are ours. `late="turn"`: HeLoCo, 2026 (arXiv 2606.00271), after a public description of its formulas. Its five
constants are unverified, and ours; so is that fresh outer gradients are left as they are. Arrivals in one round count
as simultaneous. Keeping the progress of a late learner, and rounds in place of a server, are ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.rounds.terms import Agreed
from quorate.strategies import register
from quorate.strategies.parts.learner_workers import LearnerSettings
from quorate.strategies.parts.learners import AsyncLearner, learner_of
from quorate.strategies.parts.local_steps import LocalRoundSettings, Period, period_from
from quorate.strategies.parts.outer_gradients import LatenessSettings, over_full_weights, units_of_deltas
from quorate.strategies.parts.outer_steps import OuterOptimizer, check_outer, chosen_outer, usual_outer


@register("async-local-sgd")
@dataclass(frozen=True, kw_only=True)
class AsyncLocalSGD(LocalRoundSettings, LearnerSettings, LatenessSettings):
    """Local steps; an outer step with delayed momentum whenever a learner's update arrives."""

    sync_every: int = 50
    """H: number of local steps of the fastest learner between two outer gradients that it sends."""
    dynamic: bool = True
    """Whether slower learners take fewer steps: H times their speed divided by that of the fastest."""
    outer: Literal["adam", "sgd"] = "sgd"
    """Outer optimizer: SGD with delayed Nesterov momentum, or Adam, which takes a step for every outer gradient."""
    outer_rate: float | None = None
    """Learning rate of the outer steps; unless it is set, by `sync_every`, as in `diloco`."""
    outer_momentum: float | None = None
    """Momentum of the outer steps, or beta1 for Adam; unless it is set, by `sync_every`, as in `diloco`."""
    wait_for: int | float | Literal["all", "majority"] = 1
    """K: how many learners must have sent an outer gradient before a round applies them, as in `quorum`."""
    divide_by: Literal["world", "wait_for"] = "world"
    """Divisor of each outer gradient: the number of learners, or K, whatever their weights (SGD only)."""
    momentum_every: int = 0
    """N: number of outer gradients per update of the momentum, and their divisor; 0: as `divide_by` (SGD only)."""
    late: Literal["carry", "cosine", "decay", "root", "turn"] = "carry"
    """Weight of an outer gradient that is T rounds stale: 1, a cosine gate times exp(-`late_alpha` T), 1 / (1 + T), or
    1 / sqrt(1 + T). With "turn" it is 1, and the direction is turned towards the outer momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_outer(self.outer_rate, self.outer_momentum)
        if not self._period.unit == "steps":
            raise ConfigurationError(f"sync_every is {self.sync_every!r}; it must be a number of steps (at least 1)")
        if self.momentum_every < 0:
            raise ConfigurationError(f"momentum_every is {self.momentum_every}; it must be a number of arrivals, or 0")
        if self.momentum_every and self.outer != "sgd":
            raise ConfigurationError(
                f'momentum_every delays the momentum of SGD, and outer is {self.outer!r}; use "sgd"'
            )
        if self.divide_by == "wait_for" and self.outer != "sgd":
            raise ConfigurationError(
                f'divide_by="wait_for" divides the steps of SGD, and outer is {self.outer!r}; use "sgd"'
            )

    @property
    def _period(self) -> Period:
        return period_from(self.sync_every)

    def start(self, worker: Worker) -> AsyncLearner:
        workers = self.workers_of_learner(worker, self._period)
        learners = worker.size if workers is None else len(set(workers.of))
        buffered = Agreed(size=learners, wait_for=self.wait_for).quorum
        every = self.momentum_every or (buffered if self.divide_by == "wait_for" else learners)
        chosen = chosen_outer(self.outer_rate, self.outer_momentum, usual_outer(self.outer, self._period))
        outer = OuterOptimizer(self.outer, *chosen, is_nesterov=True, device="own")
        learner = learner_of(worker.parameters, 1, outer, AsyncLearner, every=every, workers=workers)
        more: dict[str, Any] = {"learners": learner.learners, **self.late_terms(self.late), **self.bounds}
        worker.agree_on_rounds(wait_for=self.wait_for, fragments=learner.layouts(worker), units=units_of_deltas, **more)
        return learner

    def backward(self, worker: Worker) -> None:
        worker.state.meet(worker)

    def step(self, worker: Worker) -> None:
        learner: AsyncLearner = worker.state
        learner.step_begins(worker)
        worker.update()  # the step of the inner optimizer
        learner.count(worker, self._period)
        if learner.steps >= (learner.period_of(worker.rank, self._period.count) if self.dynamic else self.sync_every):
            learner.give_until_merged(worker, self._period, lambda: self._take(worker))
        learner.step_ended()

    def _take(self, worker: Worker) -> None:
        for result in worker.rounds.completed(up_to=worker.state.up_to):
            self.apply(worker, result)

    def apply(self, worker: Worker, result: Mean) -> None:
        worker.state.arrived(result.payloads)
        for fragment, sums in result.fragments.items():
            sums = over_full_weights(sums, result.payloads, fragment)
            own, turning = worker.state.payload_in(worker, result), self.turning_of(self.late, result)
            worker.state.take(worker, fragment, sums, own, turning=turning)

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.state.common, 1.0

    def drain(self, worker: Worker) -> None:
        worker.state.hand_in_last(worker, self._period, "mean", lambda: self._take(worker))

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.restore(worker, at)

    def pause(self, worker: Worker) -> None:
        worker.measure_distance(worker.state.common)
        worker.parameters = worker.state.common
        worker.state.paused(worker)
