"""Learners that never wait: what one has done since its last merges, by fragment, and what a merge makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat, Layout
from quorate.strategies.parts.fragments import By, Fragment, among, fragments_of
from quorate.strategies.parts.local_steps import LocalSteps, Period
from quorate.strategies.parts.outer_steps import OuterOptimizer, merged

Averaging = Literal["mean", "radial"]
NOBODY_WAITS = 1 << 20
"""The bound on how many rounds a learner may be behind."""


@dataclass
class HandedIn:
    """What one worker handed in at a time, by fragment."""

    since: list[list[float]]
    """`Learner.since` then."""
    ways: list[Flat]
    """As they went into rounds: only to be read."""


@dataclass(kw_only=True)
class Learner(LocalSteps):
    """One worker between its merges. `steps` and `done` count since it handed in last."""

    fragments: tuple[Fragment, ...] = kept("drop")
    outer: OuterOptimizer = kept("drop")
    common: Flat = kept("same")
    """Where the newest outer step of each fragment led."""
    memory: list[dict[str, Any]] = kept("same", is_adapted=True)
    """The state of the outer optimizer of each fragment."""
    since: list[list[float]] = kept("average", is_adapted=True)
    """By fragment: steps, and the sum of their weights, since this worker's last merge."""
    handed: dict[int, HandedIn] = kept("drop", default_factory=dict)
    """What may still come back in a round, by the time at which it was handed in."""
    times: int = kept("drop", default=0)
    """How often that was."""
    handed_at: int = kept("drop", default=0)
    """The step in which it was last."""

    def count(self, worker: Worker, period: Period) -> None:
        """Count the step that the worker has just made, for every fragment as well."""
        super().count(worker, period)
        for amounts in self.since:
            amounts[0] += 1
            amounts[1] += worker.weight

    def weight_of(self, fragment: int, period: Period) -> float:
        """What this worker counts in a merge: tokens times tokens per step, a step being what its gradient counts."""
        steps, done = (amount / period.count for amount in self.since[fragment])
        return done * done / steps if steps else 0.0

    def layouts(self, worker: Worker) -> list[Layout]:
        """Of what is handed in, by fragment."""
        return [worker.replica.read(numbers=[0.0] * (1 + len(own)), only=own).layout for own in self.fragments]

    def way(self, worker: Worker, fragment: int, weight: float, averaging: Averaging) -> Flat:
        """What is handed in of a fragment: how far it is from where all were, times its weight, and the weight.

        Radial: directions by their weights; behind it, for each tensor, the norm times the weight. Tables of embeddings
        have 0 there, and their plain mean is taken: most rows of a learner have not moved.
        """
        own, share = self.fragments[fragment], weight / worker.size
        found = worker.replica.read(numbers=[0.0] * (1 + len(own)), only=own)
        *ways, numbers = found.segments()
        cells, plain = [weight], worker.replica.tables if averaging == "radial" else own
        for place, x, before in zip(own, ways, among(self.common, own).parts, strict=True):
            x.copy_(before.view_as(x).to(x.device) - x)
            norm = 0.0 if place in plain else float(torch.linalg.vector_norm(x))
            x.mul_(share / norm if norm else share)
            cells.append(norm * weight)
        numbers.copy_(torch.tensor(cells, dtype=numbers.dtype))
        found.header.zero_()
        return found

    def hand_in(self, worker: Worker, period: Period, averaging: Averaging) -> dict[str, Any]:
        """What goes into rounds by now, of all fragments; counted as handed in by `was_handed_in`."""
        weights = [self.weight_of(number, period) for number in range(len(self.fragments))]
        ways = [self.way(worker, number, weight, averaging) for number, weight in enumerate(weights)]
        seconds = self.seconds_of(worker, 1)
        told = {"time": self.times + 1, "weights": weights, "speed": 1 / seconds if seconds else None}
        return {"vectors": ways, "fresh": float(self.steps), "told": told}

    def seconds_of(self, worker: Worker, steps: int) -> float | None:
        """What so many steps take, as those since it handed in last did in the mean; None after less than two."""
        if self.began is None or self.steps < 2:
            return None
        return (worker.step_began - self.began) / (self.steps - 1) * steps

    def hand_in_last(self, worker: Worker, period: Period, averaging: Averaging, take: Callable[[], None]) -> None:
        """Hand in all that is left before all rest; `take` takes in what has come."""
        while unknown := worker.rounds.hand_in_last(**(given := self.hand_in(worker, period, averaging))):
            unknown.wait()
            take()
        self.was_handed_in(worker, given)

    def was_handed_in(self, worker: Worker, given: Mapping[str, Any]) -> None:
        """Count steps from 0."""
        self.times += 1
        self.handed[self.times] = HandedIn([list(amounts) for amounts in self.since], given["vectors"])
        self.handed_at = worker.step
        self.restart()

    def take(
        self,
        worker: Worker,
        fragment: int,
        sums: Flat,
        told: Sequence[Mapping[str, Any]],
        *,
        share: float = 0.0,
        within: int = 0,
        drops: bool = False,
    ) -> None:
        """Make the outer step of a fragment, of the `sums` that a round has formed, and go on from there.

        Where the round has what this worker handed in (as it `told`) and it has made at most `within` steps since, its
        own numbers count `share` if it has made any (Streaming DiLoCo). Where it has made more, these are kept: it goes
        on by them from the new point. Where the round does not have it, the worker goes as far as the common point
        went, or, if it `drops` what it did, to that point.
        """
        own, x = worker.parameters, among(self.common, self.fragments[fragment])
        mine, before = among(own, self.fragments[fragment]), x.clone()
        if not self.outer_step(worker, fragment, x, sums):
            return
        given = self._merged(fragment, told[0]["time"]) if told else None
        steps = self.since[fragment][0]
        if given is not None and steps <= within:
            merged(own, x, self.fragments[fragment], share if steps else 0.0)
        elif not told and drops:
            merged(own, x, self.fragments[fragment], 0.0)
            self.since[fragment] = [0.0, 0.0]
        else:
            for theta, old, new in zip(mine.parts, before.parts, x.parts, strict=True):
                theta.add_((new - old).to(theta.device))
            for theta, way in zip(mine.parts, ways_of(given, worker.size) if given is not None else (), strict=False):
                theta.add_(way)  # it is in the new point
        worker.parameters = own

    def outer_step(self, worker: Worker, fragment: int, x: Flat, sums: Flat) -> bool:
        """Move `x`, where the common point is in a fragment, in place; whether there was anything to do."""
        ways = merged_ways(sums, worker.size)
        if ways is None:
            return False
        self.outer.step(worker, x, laid_out_as(x, ways), self.memory[fragment], fragment)
        return True

    def _merged(self, fragment: int, time: int) -> Flat | None:
        """What was handed in the `time`-th time is merged; returns it, and None where all went on from elsewhere."""
        given = self.handed.get(time)
        if given is None:
            return None
        done = list(given.since[fragment])
        for amounts in [self.since, *(other.since for later, other in self.handed.items() if later > time)]:
            amounts[fragment] = [max(0.0, x - y) for x, y in zip(amounts[fragment], done, strict=True)]
        self.handed = {other: one for other, one in self.handed.items() if other >= time}
        return given.ways[fragment]

    def restore(self, worker: Worker, at: Flat | None) -> None:
        """Go on from the consensus `at`, with nothing done since; with None, from what a checkpoint has kept.

        After a checkpoint with another number of fragments the outer optimizers begin anew.
        """
        count = len(self.fragments)
        if at is not None:
            self.common, self.handed = self.outer.place(at), {}
            self.since = [[0.0, 0.0] for _ in range(count)]
            self.restart()
        elif not len(self.memory) == len(self.since) == count:
            self.memory, self.since = [{} for _ in range(count)], [[0.0, 0.0] for _ in range(count)]


def late_terms(late: Literal["carry", "decay", "drop"]) -> dict[str, Any]:
    """What rounds agree on about what comes late."""
    weight = "falling" if late == "decay" else "full"
    return {"late": "drop" if late == "drop" else "carry", "late_weight": weight, "max_staleness": NOBODY_WAITS}


L = TypeVar("L", bound=Learner)


def ways_of(given: Flat, size: int) -> list[torch.Tensor]:
    """How far a worker had gone, by tensor, which handed in `given`."""
    *ways, numbers = given.segments()
    weight, *norms = numbers.tolist()
    factors = [size / weight * (norm / weight if norm else 1.0) if weight else 0.0 for norm in norms]
    return [way.reshape(-1) * factor for way, factor in zip(ways, factors, strict=True)]


def laid_out_as(x: Flat, tensors: Sequence[torch.Tensor]) -> Flat:
    """`tensors`, one for each part of `x`, as a vector beside it."""
    return Flat([one.reshape(-1).to(to.device) for one, to in zip(tensors, x.parts, strict=True)], x.layout)


def merged_ways(sums: Flat, size: int) -> list[torch.Tensor] | None:
    """The outer gradient of a fragment, by tensor, of the `sums` of what learners have handed in; None where nobody has
    made a step.

    Plain: the mean by weights. Radial (Decoupled DiLoCo, after public descriptions): the mean of the directions by
    weights, made one long, times the mean of the norms by weights.
    """
    *ways, numbers = sums.segments()
    total, *norms = numbers.tolist()
    if not total:
        return None
    found = []
    for x, norm in zip(ways, norms, strict=True):
        length = float(torch.linalg.vector_norm(x)) if norm else 0.0
        if length:
            found.append(x * (norm / total / length))
        else:
            found.append(x * (size / total) if total != size else x.clone())
    return found


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
