"""Learners that never wait: what one has done since its last merges, by fragment, and what a merge makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.fragments import Fragment, among, fragments_of
from quorate.strategies.parts.local_steps import LocalSteps, Period
from quorate.strategies.parts.outer_steps import OuterOptimizer

Averaging = Literal["mean", "radial"]


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
    handed: dict[int, list[list[float]]] = kept("drop", default_factory=dict)
    """`since`, each time that was handed in and may still come back in a round."""
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

    def way(self, worker: Worker, fragment: int, weight: float, averaging: Averaging) -> Flat:
        """What is handed in of a fragment: how far it is from where all were, times its weight, and the weight.

        Radial: directions by their weights, and the weights of the norms behind it, for each tensor that is not plain.
        """
        own, share = self.fragments[fragment], weight / worker.size
        found = worker.replica.read(numbers=[0.0] * (1 + len(own)), only=own)
        *ways, numbers = found.segments()
        cells = [share]
        for x, before in zip(ways, among(self.common, own).parts, strict=True):
            x.copy_(before.view_as(x).to(x.device) - x)
            norm = float(torch.linalg.vector_norm(x)) if averaging == "radial" else 0.0
            x.mul_(share / norm if norm else share)
            cells.append(norm * share)
        numbers.copy_(torch.tensor(cells, dtype=numbers.dtype))
        found.header.zero_()
        return found

    def hand_in(self, worker: Worker, period: Period, averaging: Averaging) -> dict[str, Any]:
        """What goes into rounds by now, of all fragments; counted as handed in by `was_handed_in`."""
        weights = [self.weight_of(number, period) for number in range(len(self.fragments))]
        ways = [self.way(worker, number, weight, averaging) for number, weight in enumerate(weights)]
        return {"vectors": ways, "fresh": float(self.steps), "told": {"time": self.times + 1, "weights": weights}}

    def was_handed_in(self, worker: Worker) -> None:
        """Count steps from 0."""
        self.times += 1
        self.handed[self.times] = [list(amounts) for amounts in self.since]
        self.handed_at = worker.step
        self.restart()

    def is_merged(self, fragment: int, told: Sequence[Mapping[str, Any]]) -> bool:
        """What was handed in of a fragment has come in a round, in which this worker `told` when that was.

        Returns whether it has made steps since that are in no merge.
        """
        for one in told[:1]:
            for amounts in self.handed.pop(one["time"], [self.since[fragment]] * (fragment + 1))[fragment : fragment + 1]:
                self.since[fragment] = [max(0.0, x - y) for x, y in zip(self.since[fragment], amounts, strict=True)]
        return self.since[fragment][0] > 0


def merged_way(sums: Flat, size: int) -> list[torch.Tensor] | None:
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
            found.append(x * (1 / total) if total != 1.0 else x.clone())
    return found


def learner_of(x: Flat, count: int, outer: OuterOptimizer) -> Learner:
    """The state at the start, of parameters `x` in `count` fragments."""
    return Learner(
        fragments=fragments_of(x.layout, count),
        outer=outer,
        common=outer.place(x),
        memory=[{} for _ in range(count)],
        since=[[0.0, 0.0] for _ in range(count)],
    )
