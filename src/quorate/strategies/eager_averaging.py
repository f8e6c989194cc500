"""Eager averaging: local steps, and means of parameters that need only a quorum; late updates count later.

Idea: All workers have a common point c. Each takes H local steps (`sync_every`), then sends its update d, how far it
has moved, and continues from c. As soon as `wait_for` workers have called, a round adds the sum of all d received,
divided by the number of workers, to c. A late worker continues from the new c plus its own pending d; the next round
adds that d. So each d counts once, with weight 1 / P, as in local SGD: with `wait_for="all"` it is `local-sgd`.

Cost: As `quorum`, every H steps: k d numbers to the leading worker and (P - 1) d from it, not overlapped. Memory: c,
this worker's starting point, pending updates, and the results that a slow worker has not applied yet.

When it loses: As `quorum`: where workers are equally fast, or late ones are very late: their updates are added to a
point from which they did not start. Where replicas drift apart in H steps.

Honesty:
- worker death: goes on; within a second the others form rounds without it; its steps since the last update that it sent
  are lost; with `on_death="stop"` all stop
- pause: goes on; after `grace` the others go on without it, and it catches up from the log or from a copy of a replica
- slow worker: goes on; its updates count late, within `max_staleness`
- corrupt gradient: untested; it corrupts one replica, and through it the next round
- resize: goes on; pending updates are distributed over the new workers
- resume: goes on; at the common point; pending updates count later

Paper: Li, Ben-Nun, Di Girolamo, Alistarh, Hoefler, "Taming unbalanced training workloads in deep learning with partial
collective operations", PPoPP 2020, names quorums for model averaging as future work; the form with differences in
ordered rounds is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.edits import WithPoint
from quorate.strategies.parts.local_steps import LocalRoundSettings, LocalSteps, period_from


@dataclass(kw_only=True)
class CommonPoint(LocalSteps, WithPoint):
    """The place of this worker: `common`, plus what is `pending`, plus its newest local steps."""

    common: Flat = kept("same")
    begun: Flat = kept("drop")
    """The point at which the newest local steps began."""
    pending: list[Flat] = kept("drop")
    """Contributions that are not in `common` yet, in order."""
    has_moved: bool = kept("drop", default=False)
    """Whether the common point has moved since the newest pause of all; equal on all workers during a pause."""

    def hand_in(self, reached: Flat) -> tuple[Flat, float]:
        """Return the delta of the newest local steps, up to `reached`, and the weight of one of them.

        The delta is pending from now on.
        """
        delta, weight = reached - self.begun, self.done / self.steps
        self.pending.append(delta)
        self.restart()
        return delta, weight

    def forget_steps(self) -> None:
        self.restart()

    def move_to(self, common: Flat) -> None:
        """All go on from `common`, by no step of theirs."""
        self.common, self.begun, self.has_moved = common, common.clone(), True

    def take(self, mean: Flat, count: int) -> None:
        """All went on by `mean`, in which the first `count` pending contributions have come."""
        self.common.add_(mean)
        self.has_moved = True
        del self.pending[:count]

    def rest(self) -> bool:
        """Drop pending contributions, which were too old, at a pause; return whether the common point has moved."""
        self.pending.clear()
        has_moved, self.has_moved = self.has_moved, False
        return has_moved

    def go_on(self) -> Flat:
        """Return the point at which the next local steps begin."""
        self.begun = self.common.clone()
        for delta in self.pending:
            self.begun.add_(delta)
        return self.begun


@register("eager-averaging")
@dataclass(frozen=True, kw_only=True)
class EagerAveraging(LocalRoundSettings):
    """Local steps; means of parameters need only a quorum, and late updates count later."""

    sync_every: int | str = 8
    """H, as in `local-sgd`."""
    wait_for: int | float | Literal["all", "majority", "designated"] = "majority"
    """How many workers must be ready before a mean starts, as in `quorum`."""
    max_staleness: int = 16
    """Maximum number of means by which the others may be ahead of a live worker."""

    def __post_init__(self) -> None:
        super().__post_init__()
        period_from(self.sync_every)

    def start(self, worker: Worker) -> CommonPoint:
        worker.agree_on_rounds(wait_for=self.wait_for, max_staleness=self.max_staleness, **self.bounds)
        return CommonPoint(common=worker.parameters, begun=worker.parameters, pending=[])

    def step(self, worker: Worker) -> None:
        point, period = worker.state, period_from(self.sync_every)
        worker.update()
        point.count(worker, period)
        if point.is_due(worker, period):
            delta, weight = point.hand_in(worker.parameters)
            worker.rounds.contribute(delta, weight=weight).wait()
            for result in worker.rounds.completed():
                self.apply(worker, result)
            worker.parameters = point.go_on()

    def apply(self, worker: Worker, result: Mean) -> None:
        worker.state.take(result.mean, result.contributions)

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.state.common, 1.0

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is not None:
            worker.state.move_to(at)
        else:
            worker.parameters = worker.state.go_on()

    def drain(self, worker: Worker) -> None:
        if worker.state.steps:
            delta, weight = worker.state.hand_in(worker.parameters)
            worker.rounds.contribute(delta, weight=weight, waits=False)

    def pause(self, worker: Worker) -> None:
        has_moved, common = worker.state.rest(), worker.state.go_on()
        if has_moved:
            worker.measure_distance(common)
        worker.parameters = common
