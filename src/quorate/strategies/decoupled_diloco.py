"""Decoupled DiLoCo: learners that never wait, and outer steps by fragment that need a quorum of them only.

Idea: Every learner steps by itself with its own optimizer. Every H / K steps (`sync_every`, `fragments`) it hands in
how far it has gone since its last merges, and goes on. Fragments come to outer rounds in turn. A round is formed as
soon as `wait_for` learners have handed in since the last one, and at most `window` seconds later of more of them. In it
a learner counts by what it has done since its last merge of the fragment: tokens times tokens per step. The merge is
the gradient of an outer optimizer, the same on all, which moves the point that all have in common. A learner takes it
in when it comes, at least `overlap` steps after it handed in: as in streaming DiLoCo where it is in the round, and it
comes on time; else by going as far as the common point went, with what it has done since.

A learner is a worker, or several that average their gradients in every step (`learners`).

Cost: With P learners and d parameters, per outer round 2 (P - 1) d / K numbers through the one that leads, while all
step on; three and a half copies of the parameters in memory (the common point, the outer momentum, in bfloat16 the
newest outer gradient, what is handed in), and results that are not taken yet. Handing in: three passes over the
parameters, five with radial averaging. With G workers in a learner, (G - 1) d numbers of each in every step, after
backward; on one host they lie in shared memory. At an evaluation and at the end there is one outer step more of each
fragment.

When it loses: Where learners are equally fast and nothing fails, `diloco` has fewer late merges. As there, with few
local steps, or some ten outer ones.

Honesty:
- worker death: goes on; rounds are of the remaining workers, and what it had not handed in is lost, or its learner has
  it
- pause: goes on; after `grace` the others go on without its learner, which goes on from the newest point after it
- slow worker: goes on; its learner is in fewer rounds, and counts by what it has done
- corrupt gradient: untested; it corrupts one replica, and through it the next outer step
- resize: goes on; from the common point, with the outer optimizer's state
- resume: goes on; every learner with its own replica, and what it has done since its last merges

Paper: Douillard et al., "Decoupled DiLoCo for resilient distributed pre-training", 2026 (arXiv 2604.21428), after
public descriptions: the quorum, the window, weights by tokens, radial-directional averaging. Fragments, overlap and
merging: Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, Algorithm 2. `late="cosine"` with
`outer="adam"`: Shah and Sun, "Cosine-gated Adam-decay", 2026 (arXiv 2605.09126), after its abstract: the formula of the
gate and its defaults are ours. Ours, too: what a learner does with a round that went by without it, that learners which
hand in early or late move to where the others do, and that a round of some learners moves the common point by their
part of all (`divide_by`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.fragments import check_fragments
from quorate.strategies.parts.lateness import LatenessSettings, over_full_weights
from quorate.strategies.parts.learner_settings import LearnerSettings
from quorate.strategies.parts.learners import Learner, learner_of
from quorate.strategies.parts.local_steps import LocalRoundSettings, Period, period_from
from quorate.strategies.parts.outer_steps import OuterStepSettings


@register("decoupled-diloco")
@dataclass(frozen=True, kw_only=True)
class DecoupledDiLoCo(LocalRoundSettings, LearnerSettings, OuterStepSettings, LatenessSettings):
    """Local steps that never wait; an outer step per fragment as soon as a quorum of learners has contributed."""

    sync_every: int | str = 500
    """H: as of `diloco`."""
    wait_for: int | float | Literal["all", "majority", "designated"] = "majority"
    """How many learners have to have handed in since the last round: as of `quorum`."""
    window: float = 10.0
    """Seconds at most that an outer round waits for more learners than `wait_for`; no longer than `overlap` hides."""
    overlap: int = 1
    """Local steps before a learner takes in what came of what it handed in; with 0 it waits for that."""
    averaging: Literal["mean", "radial"] = "radial"
    """Of what learners did: for each tensor its direction and its norm by themselves, of embeddings the plain mean; or
    the plain mean of all."""
    divide_by: Literal["world", "arrived"] = "world"
    """What the outer gradient is the mean over, where some learners are not in a round: all that have not died, or
    those that are in it."""
    late: Literal["carry", "cosine", "decay", "drop"] = "carry"
    """What becomes of what a learner did if T rounds of its fragment go by without it: the next takes it, as it is;
    scaled by a cosine gate and exp(-`late_alpha` T); with a weight of 1 / (1 + T); or none does."""

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
        worker.agree_on_rounds(wait_for=self.wait_for, fragments=learner.layouts(worker), **more)
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
            given = learner.hand_in(worker, self._period, self.averaging)
            learner.give(worker, given, waits=self.overlap == 0, slack=slack)
        if worker.step - learner.handed_at >= self.overlap:
            for told in self._take(worker):
                learner.came(told, period, self.overlap)
        learner.step_ended()

    def _take(self, worker: Worker) -> Iterator[Sequence[Any]]:
        """Apply the rounds that are there; gives what this learner had told with what it has in each."""
        for one in worker.rounds.completed(up_to=worker.state.up_to):
            self.apply(worker, one)
            yield worker.state.told_in(worker, one)

    def apply(self, worker: Worker, one: Mean) -> None:
        for fragment, sums in one.fragments.items():
            if self.late == "cosine":
                sums = over_full_weights(sums, one.told, fragment)
            part = worker.state.part_of(fragment, one) if self.divide_by == "world" else 1.0
            rule: dict[str, Any] = {"share": self.merge, "within": self.overlap, "drops": self.late == "drop"}
            worker.state.take(worker, fragment, sums, worker.state.told_in(worker, one), part=part, **rule)

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.state.common, 1.0

    def drain(self, worker: Worker) -> None:
        worker.state.hand_in_last(worker, self._period, self.averaging, lambda: list(self._take(worker)))

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.state.restore(worker, at)

    def settle(self, worker: Worker) -> None:
        worker.measure_distance(worker.state.common)
        worker.parameters = worker.state.common
        worker.state.rested(worker)
