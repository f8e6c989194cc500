"""Decoupled DiLoCo: learners that never wait, and outer steps by fragment that need a quorum of them only.

Idea: Every learner steps by itself with its own optimizer. Every H / K steps (`sync_every`, `fragments`) it hands in
how far it has gone since its last merges, and goes on. Fragments come to outer rounds in turn. A round is formed as
soon as `wait_for` learners have handed in since the last one, and at most `window` seconds later of more of them. In it
a learner counts by what it has done since its last merge of the fragment: tokens times tokens per step. The merge is
the gradient of an outer optimizer, the same on all, which moves the point that all have in common. A learner takes it
in when it comes, at least `overlap` steps after it handed in: as in streaming DiLoCo where it is in the round, and else
by going as far as the common point went, with what it has done since.

Cost: With P learners and d parameters, per outer round 2 (P - 1) d / K numbers through the one that leads, while all
step on; three copies of the parameters in memory (the common point, the outer momentum, what is handed in), and
results that are not taken yet. Handing in: three passes over the parameters, five with radial averaging. At an
evaluation and at the end there is one outer step more of each fragment.

When it loses: Where learners are equally fast and nothing fails, `diloco` has fewer late merges. As there, with few
local steps, or some ten outer ones.

Honesty:
- worker death: goes on; rounds are of those that are left, and what it had not handed in is lost
- pause: goes on; after `grace` the others go on without it, and it takes the newest point and goes on from there
- slow worker: goes on; it is in fewer rounds, and counts by what it has done
- corrupt gradient: untested; it spoils one replica, and with it the next outer step
- resize: goes on; from the common point, with the outer optimizer's state
- resume: goes on; every learner with its own replica, and what it has done since its last merges

Paper: Douillard et al., "Decoupled DiLoCo for resilient distributed pre-training", 2026 (arXiv 2604.21428), after
public descriptions: the quorum, the window, weights by tokens, radial-directional averaging. Fragments, overlap and
merging: Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, Algorithm 2. What a learner does
with a round that went by without it is ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.fragments import among, check_fragments
from quorate.strategies.parts.learners import Averaging, Learner, learner_of, merged_way
from quorate.strategies.parts.local_steps import LocalStepSettings
from quorate.strategies.parts.outer_steps import OuterOptimizer, check_outer, merged

_ROUNDS_BEHIND = 1 << 20
"""Nobody waits for a learner that is behind."""


@register("decoupled-diloco")
@dataclass(frozen=True, kw_only=True)
class DecoupledDiLoCo(LocalStepSettings):
    """Local steps without ever waiting; outer steps by fragment as soon as a quorum of learners has handed in."""

    meets = "rounds"

    sync_every: int | str = 500
    """H: as of `diloco`."""
    wait_for: int | float | Literal["all", "majority", "designated"] = "majority"
    """How many learners have to have handed in since the last round: as of `quorum`."""
    fragments: int = 1
    """K: as of `diloco`."""
    overlap: int = 0
    """Local steps before a learner takes in what came of what it handed in; with 0 it waits for that."""
    merge: float = 0.5
    """As of `diloco`."""
    averaging: Averaging = "radial"
    """Of what learners did, for each tensor: its direction and its norm by themselves, or the plain mean."""
    outer: Literal["adagrad", "adam", "sgd"] = "sgd"
    """As of `diloco`."""
    outer_rate: float = 0.7
    """As of `diloco`."""
    outer_momentum: float = 0.9
    """As of `diloco`."""
    nesterov: bool = True
    """As of `diloco`."""
    outer_device: Literal["own", "cpu"] = "own"
    """As of `diloco`."""
    grace: float = 0.05
    """As of `quorum`."""
    patience: float = 10.0
    """As of `quorum`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_outer(self.outer_rate, self.outer_momentum)
        check_fragments(self.sync_every, self.fragments, self.overlap, self.merge)

    def start(self, worker: Worker) -> Learner:
        outer = OuterOptimizer(self.outer, self.outer_rate, self.outer_momentum, self.nesterov, self.outer_device)
        learner = learner_of(worker.parameters, self.fragments, outer)
        layouts = [worker.replica.read(numbers=[0.0] * (1 + len(own)), only=own).layout for own in learner.fragments]
        worker.agree_on_rounds(
            wait_for=self.wait_for,
            max_staleness=_ROUNDS_BEHIND,
            grace=self.grace,
            patience=self.patience,
            fragments=layouts,
        )
        return learner

    def step(self, worker: Worker) -> None:
        learner: Learner = worker.state
        worker.update()  # the step of the inner optimizer
        learner.count(worker, self.period)
        if learner.is_due(worker, self.period / self.fragments):
            handed = worker.rounds.hand_in(
                **learner.hand_in(worker, self.period, self.averaging), waits=self.overlap == 0
            )
            learner.was_handed_in(worker)
            if self.overlap == 0:
                handed.wait()
        if worker.step - learner.handed_at >= self.overlap:
            for one in worker.rounds.completed():
                self.apply(worker, one)

    def apply(self, worker: Worker, one: Mean) -> None:
        learner: Learner = worker.state
        for number, sums in one.fragments.items():
            ways, fragment = merged_way(sums, worker.size), learner.fragments[number]
            if ways is None:
                continue
            own, x = worker.parameters, among(learner.common, fragment)
            before, told = x.clone(), one.told.get(worker.rank)
            learner.outer.step(worker, x, Flat([way.reshape(-1).to(to.device) for way, to in zip(ways, x.parts, strict=True)], x.layout), learner.memory[number])
            if told:
                worker.parameters = merged(own, x, fragment, self.merge if learner.is_merged(number, told) else 0.0)
            else:
                mine = among(own, fragment)
                for theta, old, new in zip(mine.parts, before.parts, x.parts, strict=True):
                    theta.add_((new - old).to(theta.device))
                worker.parameters = own

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.state.common, 1.0

    def drain(self, worker: Worker) -> None:
        learner: Learner = worker.state
        while (unknown := worker.rounds.hand_in_last(**learner.hand_in(worker, self.period, self.averaging))) is not None:
            unknown.wait()
            for one in worker.rounds.completed():
                self.apply(worker, one)
        learner.was_handed_in(worker)

    def settle(self, worker: Worker) -> None:
        worker.measure_distance(worker.state.common)
        worker.parameters = worker.state.common
