"""Decoupled DiLoCo: learners that never wait, and outer steps by fragment that need only a quorum.

Idea: Every learner takes steps of its own optimizer. Every H / K steps (`sync_every`, `fragments`) it sends how far it
has moved since its last merges, and goes on. Fragments take turns in outer rounds. A round starts as soon as `wait_for`
learners have sent since the last round, and at most `window` seconds later if more learners are expected. A learner's
weight in a round is its work since its last merge of the fragment: tokens times tokens per step. The merge is the
gradient of an outer optimizer, equal on all learners, which moves the common point. A learner applies the result when
it arrives, at least `overlap` steps after it sent. If it took part in the round and the result is on time, it merges as
in streaming DiLoCo. Otherwise it moves as far as the common point moved, and keeps its own progress since then.

A learner is one worker, or several workers that average their gradients in every step (`learners`).

Cost: With P learners and d parameters, per outer round 2 (P - 1) d / K numbers through the leading worker, while all
learners keep training. Memory holds three and a half copies of the parameters, and results not yet applied. The copies
are the common point, the outer momentum, the newest outer gradient in bfloat16, and the update being sent. Sending
takes three passes over the parameters, five with radial averaging. With G workers in a learner, each sends (G - 1) d
numbers in every step, after the backward pass; on one host they lie in shared memory. At an evaluation and at the end
each fragment has one more outer step.

When it loses: If learners are equally fast and nothing fails, `diloco` has fewer late merges. Like `diloco`, with few
local steps, or only some ten outer steps. `late="turn"` gained nothing in two tasks, beside a learner four times slower
(docs/benchmarks/late-workers.md).

Honesty:
- worker death: goes on; rounds are formed by the remaining workers; what it had not yet sent is lost, or kept by the
  other workers of its learner
- pause: goes on; after `grace` the others go on without its learner, which later continues from the newest common point
- slow worker: goes on; its learner takes part in fewer rounds, weighted by its work
- corrupt gradient: untested; it corrupts one replica, and through it the next outer step
- resize: goes on; from the common point, with the outer optimizer's state
- resume: goes on; every learner with its own replica, and its progress since its last merges

Paper: Douillard et al., "Decoupled DiLoCo for resilient distributed pre-training", 2026 (arXiv 2604.21428), after
public descriptions: the quorum, the window, weights by tokens, radial-directional averaging. Fragments, overlap and
merging: Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, Algorithm 2. `late="cosine"` with
`outer="adam"`: Shah and Sun, "Cosine-gated Adam-decay", 2026 (arXiv 2605.09126), after its abstract: the formula of the
gate and its defaults are ours. `late="turn"`: HeLoCo, 2026 (arXiv 2606.00271), after a public description of its
formulas. Its five constants are unverified, and ours. Three more parts are ours: how a learner treats a round it
missed, that learners which send early or late move with the others, and `divide_by`. By it a round of some learners
moves the common point by their share of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.fragments import check_fragments
from quorate.strategies.parts.learners import Learner, learner_of, part_of
from quorate.strategies.parts.local_steps import LocalRoundSettings, Period, period_from
from quorate.strategies.parts.mates import LearnerSettings
from quorate.strategies.parts.outer_gradients import LatenessSettings, over_full_weights, units_of_deltas
from quorate.strategies.parts.outer_steps import OuterStepSettings


@register("decoupled-diloco")
@dataclass(frozen=True, kw_only=True)
class DecoupledDiLoCo(LocalRoundSettings, LearnerSettings, OuterStepSettings, LatenessSettings):
    """Local steps that never wait; an outer step per fragment as soon as a quorum of learners has contributed."""

    sync_every: int | str = 500
    """H, as in `diloco`."""
    wait_for: int | float | Literal["all", "majority", "designated"] = "majority"
    """How many learners must have sent an outer gradient since the last round, as in `quorum`."""
    window: float = 10.0
    """Maximum number of seconds that an outer round waits for more learners than `wait_for`; no longer than `overlap`
    hides."""
    overlap: int = 1
    """Number of local steps before a learner applies the result of what it sent; 0: it waits for the result."""
    averaging: Literal["mean", "radial"] = "radial"
    """How updates are averaged. "radial": direction and norm of each tensor separately, except for embeddings; "mean":
    the plain mean of all tensors."""
    divide_by: Literal["world", "arrived"] = "world"
    """Divisor of the outer gradient if a round lacks some learners: the number of live learners, or of those in the
    round."""
    late: Literal["carry", "cosine", "decay", "drop", "turn"] = "carry"
    """Weight of a learner's update in the next round after T rounds of its fragment have passed without it. It is 1
    (carry), a cosine gate times exp(-`late_alpha` T), 1 / (1 + T) (decay), or 0 (drop). With "turn" it is 1, and the
    mean of such a round is turned towards the outer momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fragments(self.sync_every, self.fragments, self.overlap, self.merge)

    @property
    def _period(self) -> Period:
        return period_from(self.sync_every)

    def start(self, worker: Worker) -> Learner:
        learner = learner_of(worker.parameters, self.fragments, self.outer_optimizer, Learner, by=self.fragments_by)
        learner.mates, late = self.mates_of(worker, self._period), self.late_terms(self.late)
        more = {"learners": learner.learners, "window": self.window if self.overlap else 0.0, **late, **self.bounds}
        worker.agree_on_rounds(wait_for=self.wait_for, fragments=learner.layouts(worker), units=units_of_deltas, **more)
        return learner

    def backward(self, worker: Worker) -> None:
        worker.state.meet(worker)

    def step(self, worker: Worker) -> None:
        learner: Learner = worker.state
        learner.step_begins(worker)
        worker.update()  # the step of the inner optimizer
        learner.count(worker, self._period)
        period = self._period / self.fragments
        if learner.is_due(worker, period):
            slack = learner.seconds_of(worker, self.overlap)
            contribution = learner.hand_in(worker, self._period, self.averaging)
            learner.give(worker, contribution, waits=self.overlap == 0, slack=slack)
        if worker.step - learner.handed_at >= self.overlap:
            for payloads in self._take(worker):
                learner.adjust_period(payloads, period, self.overlap)
        learner.step_ended()

    def _take(self, worker: Worker) -> Iterator[Sequence[Any]]:
        """Apply the rounds that are there; gives what this learner had told with what it has in each."""
        for result in worker.rounds.completed(up_to=worker.state.up_to):
            self.apply(worker, result)
            yield worker.state.told_in(worker, result)

    def apply(self, worker: Worker, result: Mean) -> None:
        for fragment, sums in result.fragments.items():
            if self.late == "cosine":
                sums = over_full_weights(sums, result.payloads, fragment)
            part = part_of(fragment, result) if self.divide_by == "world" else 1.0
            rule: dict[str, Any] = {"share": self.merge, "within": self.overlap, "drops": self.late == "drop"}
            rule["turning"] = self.turning_of(self.late, result)
            worker.state.take(worker, fragment, sums, worker.state.told_in(worker, result), part=part, **rule)

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.state.common, 1.0

    def drain(self, worker: Worker) -> None:
        worker.state.hand_in_last(worker, self._period, self.averaging, lambda: list(self._take(worker)))

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.restore(worker, at)

    def pause(self, worker: Worker) -> None:
        worker.measure_distance(worker.state.common)
        worker.parameters = worker.state.common
        worker.state.rested(worker)
