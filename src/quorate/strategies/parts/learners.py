"""Learners that never wait: their steps since their newest merges, by fragment, and the merges.

The local steps of a learner may be made by several workers: see `learner_workers`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from quorate.core.device_copies import values_of
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat, Layout
from quorate.strategies.parts.edits import WithPoint, edit_of
from quorate.strategies.parts.fragments import By, Fragment, among, fragments_of
from quorate.strategies.parts.learner_workers import LearnerWorkers, Met
from quorate.strategies.parts.local_steps import LocalSteps, Period
from quorate.strategies.parts.outer_gradients import Turning, deltas_of, laid_out_as, merged_deltas
from quorate.strategies.parts.outer_steps import OuterOptimizer, dots, merged

_WHOLE = ("steps", "done", "examples", "since", "times", "again_after")
"""The fields of a learner that are equal on all of its workers."""
_ATTEMPTS = 4
"""How often a learner contributes the same outer gradient; after that the round of another learner takes it."""


@dataclass
class HandedIn:
    """A contribution of one worker, by fragment."""

    since: list[list[float]]
    """`Learner.since` at that time."""
    deltas: list[Flat]
    """The deltas as they went into rounds; they are only read."""


@dataclass(kw_only=True)
class LearnerSteps(LocalSteps):
    """One worker's part in the steps of its learner."""

    fragments: tuple[Fragment, ...] = kept("drop")
    since: list[list[float]] = kept("average", is_adapted=True)
    """Steps since this worker's newest merge, and the sum of their weights, by fragment."""
    handed: dict[int, HandedIn] = kept("drop", default_factory=dict)
    """Contributions that may still come back in a round, by their number."""
    times: int = kept("drop", default=0)
    """The number of contributions so far."""
    handed_at: int = kept("drop", default=0)
    """The step of the newest contribution."""
    again_after: float = kept("average", default=0.0)
    """Steps from the newest contribution to the next one, set by `adjust_period`; 0: the period of the settings."""
    workers: LearnerWorkers | None = kept("drop", default=None)
    """The workers of this learner, if learners are of several."""

    def meet(self, worker: Worker) -> None:
        """Exchange gradients with the other workers of the learner, if any, once for each step."""
        if self.workers is not None:
            counts = self.workers.period.unit == "seconds" and self.began is not None
            self.workers.meet(worker, self, worker.now() - (self.began or 0.0) if counts else 0.0)

    def step_begins(self, worker: Worker) -> None:
        """Exchange gradients, unless a backward pass of this step has."""
        if self.workers is not None and self.workers.met is None:
            self.meet(worker)

    def step_ended(self) -> None:
        """End the step for which the workers of the learner have met."""
        if self.workers is not None:
            self.workers.met = None

    @property
    def met(self) -> Met | None:
        """The numbers of this step, if the learner is of several workers."""
        return None if self.workers is None else self.workers.met

    @property
    def learners(self) -> tuple[int, ...]:
        """The number of each worker's learner, by rank; nothing if each worker is a learner."""
        return () if self.workers is None else self.workers.of

    @property
    def fresh(self) -> float:
        """The steps that are new in a contribution; all, if another worker may have been about to contribute them."""
        is_alone = self.workers is None or len(self.workers.group.ranks) == 1
        return float(self.steps if is_alone else max(amounts[0] for amounts in self.since))

    @property
    def up_to(self) -> int | None:
        """The newest round to apply in this step; None: all that have arrived."""
        return None if self.met is None else self.met.up_to

    def payload_in(self, worker: Worker, result: Mean) -> Sequence[Any]:
        """Return the payloads of this learner's contributions to a round."""
        return (
            result.payloads.get(worker.rank, ()) if self.workers is None else self.workers.payload_in(result.payloads)
        )

    def layouts(self, worker: Worker) -> list[Layout]:
        """Return the layouts of a contribution, by fragment."""
        return [worker.replica.read(numbers=[0.0] * (1 + len(own)), only=own).layout for own in self.fragments]

    def full_state(self, worker: Worker) -> tuple[dict[str, Any], list[Tensor]]:
        """Return the state that is not equal on all workers, as JSON and tensors."""
        payload = {name: getattr(self, name) for name in _WHOLE}
        payload["ago"] = worker.step - self.handed_at
        payload["handed"] = [[time, entry.since] for time, entry in self.handed.items()]
        return payload, [part for entry in self.handed.values() for delta in entry.deltas for part in delta.parts]

    def become(self, worker: Worker, payload: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
        """Take over the state of another worker of this learner."""
        for name in _WHOLE:
            setattr(self, name, copy.deepcopy(payload[name]))
        self.handed_at = worker.step - payload["ago"]
        layouts, parts = self.layouts(worker), iter(tensors)
        self.handed = {
            time: HandedIn(since, [Flat([next(parts) for _ in layout.parts], layout) for layout in layouts])
            for time, since in payload["handed"]
        }


Averaging = Literal["mean", "radial"]


@dataclass(kw_only=True)
class Learner(LearnerSteps, WithPoint):
    """One worker between its merges. `steps` and `done` count since its newest contribution."""

    outer: OuterOptimizer = kept("drop")
    common: Flat = kept("same")
    """The result of the newest outer step of each fragment."""
    memory: list[dict[str, Any]] = kept("same", is_adapted=True)
    """The state of the outer optimizer of each fragment."""
    at_pause: bool = kept("drop", default=False)
    """Whether this worker takes no more steps until the pause of all."""

    def count(self, worker: Worker, period: Period) -> None:
        """Count the step that the worker has just made, for every fragment as well."""
        met = self.met
        if met is None:
            super().count(worker, period)
        else:
            self.add(worker, met.weight, met.examples)
        for amounts in self.since:
            amounts[0] += 1
            amounts[1] += worker.weight if met is None else met.weight

    def weight_of(self, fragment: int, period: Period) -> float:
        """Return the weight of this worker in a merge: tokens times tokens per step, by the weights of steps."""
        steps, done = (amount / period.count for amount in self.since[fragment])
        return done * done / steps if steps else 0.0

    def delta_of(self, worker: Worker, fragment: int, weight: float, averaging: Averaging) -> Flat:
        """Return the contribution of a fragment: its delta from the common point, times its weight, and the weight.

        Radial: directions by their weights; behind it, for each tensor, the norm times the weight. Tables of embeddings
        have 0 there, and their plain mean is taken: most rows of a learner have not moved.
        """
        own, share = self.fragments[fragment], weight / worker.size
        contribution = worker.replica.read(numbers=[0.0] * (1 + len(own)), only=own)
        *deltas, numbers = contribution.segments()
        cells, plain = [weight], worker.replica.tables if averaging == "radial" else own
        for x, before in zip(deltas, among(self.common, own).parts, strict=True):
            x.copy_(before.view_as(x).to(x.device) - x)
        radial = [x for place, x in zip(own, deltas, strict=True) if place not in plain]
        lengths = iter(values_of([torch.linalg.vector_norm(x) for x in radial]))
        for place, x in zip(own, deltas, strict=True):
            norm = 0.0 if place in plain else next(lengths)
            x.mul_(share / norm if norm else share)
            cells.append(norm * weight)
        numbers.copy_(torch.tensor(cells, dtype=numbers.dtype))
        return contribution

    def adjust_period(self, payloads: Sequence[Mapping[str, Any]], period: Period, overlap: int) -> None:
        """Set the time of the next contribution by a round that has arrived, so that all learners contribute together.

        Only the first round since the newest contribution counts. A learner that contributes with the others has the
        round after `overlap` steps. One that has it later was early, and contributes so much later the next time. One
        whose newest contribution is not in the round was late, and contributes a step earlier. A contribution that lies
        for most of a period until a round begins is late by that, and momentum on late outer gradients overshoots.
        """
        if period.unit != "steps" or self.again_after:
            return
        is_late = self.steps <= overlap and not any(payload["time"] == self.times for payload in payloads)
        self.again_after = max(1.0, period.count - 1 if is_late else period.count - overlap + self.steps)

    def is_due(self, worker: Worker, period: Period) -> bool:
        """Whether the learner contributes: by `again_after`, if it is set, else as `LocalSteps`."""
        if self.met is not None and period.unit == "seconds":
            return self.met.seconds >= period.count
        return self.steps >= self.again_after if self.again_after else super().is_due(worker, period)

    def hand_in(self, worker: Worker, period: Period, averaging: Averaging) -> dict[str, Any]:
        """Return the contribution of all fragments as it is now; `was_handed_in` counts it."""
        weights = [self.weight_of(number, period) for number in range(len(self.fragments))]
        deltas = [self.delta_of(worker, number, weight, averaging) for number, weight in enumerate(weights)]
        seconds = self.seconds_of(worker, 1)
        payload = {"time": self.times + 1, "weights": weights, "speed": 1 / seconds if seconds else None}
        return {"vectors": deltas, "fresh": self.fresh, "payload": payload}

    def give(self, worker: Worker, contribution: dict[str, Any], *, waits: bool, slack: float | None = None) -> None:
        """Contribute the result of `hand_in`; with `waits` return when its round has arrived."""
        handed = None
        if self.workers is None or self.workers.hands_in(worker):
            handed = worker.rounds.hand_in(**contribution, waits=waits, slack=slack)
        self.was_handed_in(worker, contribution)
        if waits and self.workers is not None:
            self.workers.wait(worker, self, handed)
        elif waits and handed is not None:
            handed.wait()

    def seconds_of(self, worker: Worker, steps: int) -> float | None:
        """Return the seconds of so many steps, as since the newest contribution; None after fewer than two."""
        if self.began is None or self.steps < 2:
            return None
        return (worker.step_began - self.began) / (self.steps - 1) * steps

    def hand_in_last(self, worker: Worker, period: Period, averaging: Averaging, take: Callable[[], None]) -> None:
        """Contribute all that is left before the pause of all; `take` applies the rounds that have arrived."""
        self.at_pause = True
        if self.workers is not None and not self.workers.leaves(worker, self, take):
            return
        while unknown := worker.rounds.hand_in_last(**(contribution := self.hand_in(worker, period, averaging))):
            unknown.wait()
            take()
        self.was_handed_in(worker, contribution)

    def forget_steps(self) -> None:
        self.since = [[0.0, 0.0] for _ in self.fragments]
        self.restart()

    def was_handed_in(self, worker: Worker, contribution: Mapping[str, Any]) -> None:
        """Count steps from 0."""
        self.times += 1
        self.handed[self.times] = HandedIn([list(amounts) for amounts in self.since], contribution["vectors"])
        self.handed_at = worker.step
        self.restart()

    def restart(self) -> None:
        """Count from 0, and contribute again as set."""
        super().restart()
        self.again_after = 0.0

    def take(
        self,
        worker: Worker,
        fragment: int,
        sums: Flat,
        payloads: Sequence[Mapping[str, Any]],
        *,
        share: float = 0.0,
        within: int = 0,
        drops: bool = False,
        part: float = 1.0,
        turning: Turning | None = None,
    ) -> None:
        """Make the outer step of a fragment, on `part` of the mean delta in the `sums` of a round, and go on from it.

        With `turning` the mean delta is corrected first, equally on all workers.

        If the round has a contribution of this worker (see `payloads`), and it has made between 1 and `within` steps
        since, its own numbers count `share` (Streaming DiLoCo). If it has made more, or is at a pause, these steps are
        kept: it goes on by them from the new point. If the round does not have one, the worker moves as far as the
        common point did, or, if it `drops` its steps, to that point.
        """
        own, x = worker.parameters, among(self.common, self.fragments[fragment])
        local, before = among(own, self.fragments[fragment]), x.clone()
        if not self.outer_step(worker, fragment, x, sums, part, turning):
            return
        delta = self._merged(fragment, payloads[0]["time"]) if payloads else None
        steps = self.since[fragment][0]
        if self.at_pause and (
            payloads or not drops
        ):  # what was done since counts in full, edits of the script included
            deltas = (
                deltas_of(delta, worker.size) if delta is not None else [torch.zeros_like(old) for old in before.parts]
            )
            for theta, old, new, moved in zip(local.parts, before.parts, x.parts, deltas, strict=False):
                left = old - moved.to(old.device)
                theta.copy_(edit_of(theta, left, old, new).add_(new.to(theta.device)))
        elif delta is not None and steps <= within:
            merged(own, x, self.fragments[fragment], share if steps else 0.0)
        elif not payloads and drops:
            merged(own, x, self.fragments[fragment], 0.0)
            self.since[fragment] = [0.0, 0.0]
        else:
            for theta, old, new in zip(local.parts, before.parts, x.parts, strict=True):
                theta.add_((new - old).to(theta.device))
            for theta, moved in zip(
                local.parts, deltas_of(delta, worker.size) if delta is not None else (), strict=False
            ):
                theta.add_(moved)  # it is in the new point
        worker.parameters = own

    def outer_step(
        self, worker: Worker, fragment: int, x: Flat, sums: Flat, part: float, turning: Turning | None
    ) -> bool:
        """Move `x`, where the common point is in a fragment, in place; whether there was anything to do.

        The outer gradient is `part` of the mean delta, corrected by `turning`.
        """
        deltas = merged_deltas(sums, worker.size)
        if deltas is None:
            return False
        if turning is not None:
            deltas = turning.of([delta.reshape(-1) for delta in deltas], self.outer.momenta(self.memory[fragment]))
        if part != 1.0:
            deltas = [delta * part for delta in deltas]
        self.outer.step(worker, x, laid_out_as(x, deltas), self.memory[fragment], fragment)
        return True

    def _merged(self, fragment: int, time: int) -> Flat | None:
        """Count contribution `time` as merged and return its delta; None if all went on from elsewhere."""
        contribution = self.handed.get(time)
        if contribution is None:
            return None
        done = list(contribution.since[fragment])
        for amounts in [self.since, *(other.since for later, other in self.handed.items() if later > time)]:
            amounts[fragment] = [max(0.0, x - y) for x, y in zip(amounts[fragment], done, strict=True)]
        self.handed = {other: entry for other, entry in self.handed.items() if other >= time}
        return contribution.deltas[fragment]

    def restore(self, worker: Worker, at: Flat | None) -> None:
        """Go on from the consensus `at`, with nothing done since; with None, from what a checkpoint has kept.

        After a checkpoint with another number of fragments the outer optimizers begin again.
        """
        count = len(self.fragments)
        if at is not None:
            self.common, self.handed = self.outer.place(at), {}
            self.forget_steps()
        elif not len(self.memory) == len(self.since) == count:
            self.memory, self.since = [{} for _ in range(count)], [[0.0, 0.0] for _ in range(count)]
        if self.workers is not None:
            worker.rounds.standing.withdraw()
            self.workers.group.doubt()

    def paused(self, worker: Worker) -> None:
        """Note that all workers have paused, and all of their steps are merged."""
        self.at_pause = False
        if self.workers is None:
            return
        if len(self.workers.group.ranks) > 1:
            self.handed = {}
            self.forget_steps()
        self.workers.paused(worker)


def part_of(fragment: int, result: Mean) -> float:
    """Return the share of the learners that have not died whose delta is in a round; those that have ended live."""
    deltas = sum(any(each["weights"][fragment] for each in payloads) for payloads in result.payloads.values())
    return deltas / max(result.learners, deltas, 1)


L = TypeVar("L", bound=Learner)


def learner_of(x: Flat, count: int, outer: OuterOptimizer, kind: type[L], *, by: By = "bytes", **more: Any) -> L:
    """The state at the start, of parameters `x` in `count` fragments."""
    return kind(
        fragments=fragments_of(x.layout, count, by),
        outer=outer,
        common=outer.place(x),
        memory=[{} for _ in range(count)],
        since=[[0.0, 0.0] for _ in range(count)],
        **more,
    )


@dataclass(kw_only=True)
class AsyncLearner(Learner):
    """A learner whose outer gradients are applied as they arrive."""

    every: int = kept("drop")
    """Arrivals in a cycle of the momentum."""
    arrivals: int = kept("same", default=0)
    """Since the momentum moved last."""
    gathered: list[Tensor] = kept("same", is_adapted=True, default_factory=list)
    """The sum of the outer gradients since then, by tensor; none where there was none."""
    m: list[Tensor] = kept("same", is_adapted=True, default_factory=list)
    """The momentum of the outer steps, by tensor; none where there was none."""
    speeds: dict[str, float] = kept("same", default_factory=dict)
    """Steps per second, by learner, in the payload of its newest arrival."""

    began_at: int | None = kept("drop", default=None)
    """The newest round applied when the steps since its newest contribution began; None before the first step."""

    def step_begins(self, worker: Worker) -> None:
        """Note at which round the steps of the next outer gradient begin."""
        super().step_begins(worker)
        if self.began_at is None:
            self.began_at = worker.rounds.standing.version

    def hand_in(self, worker: Worker, period: Period, averaging: Averaging) -> dict[str, Any]:
        """A learner, and the round from which on its outer gradient has become older."""
        return {**super().hand_in(worker, period, averaging), "began": self.began_at}

    def restart(self) -> None:
        """The next step is the first of another outer gradient."""
        super().restart()
        self.began_at = None

    @property
    def is_merged(self) -> bool:
        """Whether the common point has all steps that this learner has made."""
        return not any(steps for steps, _ in self.since)

    def give_until_merged(self, worker: Worker, period: Period, take: Callable[[], None]) -> None:
        """Contribute an outer gradient, and return when it is in the common point; `take` applies rounds.

        These come first: a learner that is behind in rounds cannot call for one. Where a round was being formed without
        the outer gradient, the learner hands it in again, at most `_ATTEMPTS` times.
        """
        take()
        began = self.began_at
        for _ in range(_ATTEMPTS if self.workers is None else 1):
            self.began_at = began
            self.give(worker, self.hand_in(worker, period, "mean"), waits=True)
            take()
            if self.is_merged:
                break

    def arrived(self, payloads: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """A round has these, which are applied next."""
        self.arrivals += sum(any(payload["weights"]) for own in payloads.values() for payload in own[:1])
        speeds = [(self._of(rank), payload["speed"]) for rank, own in payloads.items() for payload in own]
        self.speeds |= {learner: speed for learner, speed in speeds if speed}

    def _of(self, rank: int) -> str:
        """Which learner a worker is of."""
        return str(rank if self.workers is None else self.workers.of[rank])

    def weight_of(self, fragment: int, period: Period) -> float:
        """1: outer gradients are not averaged."""
        return 1.0 if self.since[fragment][0] else 0.0

    def period_of(self, rank: int, longest: float) -> float:
        """H_w = floor(v_w / v_max H), at least 1 (Liu et al., 2024: dynamic local updates); H as long as not told."""
        own, fastest = self.speeds.get(self._of(rank)), max(self.speeds.values(), default=0.0)
        return longest if own is None else max(1.0, math.floor(own / fastest * longest))

    def outer_step(
        self, worker: Worker, fragment: int, x: Flat, sums: Flat, part: float, turning: Turning | None
    ) -> bool:
        """Delayed Nesterov momentum (Liu et al., 2024, Algorithm 3): of N arrivals g in a cycle,

        every one: x -= lr g / N, s += g; every N-th: m = beta m + s / N, x -= lr beta m, s = 0

        With another optimizer a step of it on the mean of the arrivals of a round, each by what it counts.
        """
        if self.outer.kind != "sgd":
            return super().outer_step(worker, fragment, x, sums, part, turning)
        *deltas, numbers = sums.segments()
        if not (total_weight := float(numbers[0])):
            return False
        if turning is not None:
            momenta = [m * (1 - self.outer.momentum) for m in self.m if self.outer.momentum]
            deltas = turning.of([delta.reshape(-1) for delta in deltas], momenta, worker.size / total_weight)
        gradient = laid_out_as(
            x, [delta * (worker.size / self.every) for delta in deltas]
        )  # deltas are over all workers
        gathered = self.gathered or [torch.zeros_like(part) for part in x.parts]
        for own, g, total in zip(x.parts, gradient.parts, gathered, strict=True):
            own.add_(g, alpha=-self.outer.rate)
            total.add_(g)
        self.gathered = gathered
        if self.arrivals >= self.every:
            self.m = [m.mul_(self.outer.momentum) for m in self.m] or [torch.zeros_like(part) for part in x.parts]
            for own, m, total in zip(x.parts, self.m, gathered, strict=True):
                own.add_(m.add_(total), alpha=-self.outer.rate * self.outer.momentum)
            square, product = dots((gathered, gathered), (self.m, gathered))
            if square:
                reach = self.outer.rate * (1 + self.outer.momentum * product / square)
                worker.note_outer_step(fragment, None, reach=reach)
            self.gathered, self.arrivals = [], 0
        return True
