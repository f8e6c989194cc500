"""Where the time of steps went.

What a worker itself cannot tell apart, its `wait`, is split by holding arrivals side by side: until the last one of
those it waited for had arrived it waited for others, after that for bytes to move. Where everybody waits for everybody
these are all that met; under a quorum, those whose gradients are in the round. What a stage of a pipeline waits for
other stages is waiting for others. Of what was injected, the pace stands for compute, and the rest is lateness.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.records.rows import Step
from quorate.report.figures.statistics import quantile
from quorate.report.reading.meetings import Meetings

if TYPE_CHECKING:
    from quorate.report.schema import StepTimes

ACTIVITIES = ("data", "compute", "pace", "delay", "encode", "waiting", "communication", "decode", "update", "other")
"""In the order in which reports show them."""
BINS = 40
TAIL = 1.25
"""The histogram ends at so many times the 99th percentile, unless the longest step is shorter."""


@dataclass(frozen=True, slots=True)
class Spent:
    """One step and its seconds by activity, in the order of `ACTIVITIES`; they add up to `seconds`."""

    rank: int
    step: Step
    by: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.step.end - self.step.begin


def spent_in(meetings: Meetings, last: Mapping[int, float] | None = None) -> list[Spent]:
    """Every step with where its time went. What its parts leave of a step is "other", never below 0.

    `last` says under a quorum when the last gradient of a round had come, by update. Where it does not say, nobody is
    known to have been waited for.
    """
    found = []
    for (update, _), there in meetings.steps.items():
        latest = max(step.arrive for step in there.values()) if last is None else last.get(update, -math.inf)
        for rank, step in there.items():
            bubble = min(step.wait, step.bubble or 0.0)  # of a pipeline, before it came
            waiting = bubble + max(0.0, min(step.wait - bubble, latest - step.arrive))
            moving = max(0.0, step.wait - waiting)
            pace = min(step.delay, step.pace or 0.0)
            parts = (
                step.data, step.compute, pace, step.delay - pace, step.encode, waiting, moving, step.decode,
                step.update,
            )  # fmt: skip
            found.append(Spent(rank, step, _fitted(parts, step.end - step.begin)))
    return found


def _fitted(parts: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """The parts and what they leave; where clocks or rounding make them more than the whole, shrunk to fit it."""
    total = sum(parts)
    if total <= seconds or total <= 0.0:
        return (*parts, max(0.0, seconds - total))
    return (*(part * max(0.0, seconds) / total for part in parts), 0.0)


def waiting_share(spent: Iterable[Spent]) -> float | None:
    """The share of the time of these steps that was waiting for others; None without steps."""
    place = ACTIVITIES.index("waiting")
    waited = total = 0.0
    for one in spent:
        waited += one.by[place]
        total += one.seconds
    return waited / total if total > 0.0 else None


def bubble_share(steps: Iterable[Step]) -> float | None:
    """The share of these steps of one worker in which it waited for other stages; None where it has none."""
    known = [(step, step.bubble) for step in steps if step.bubble is not None]
    seconds = sum(step.end - step.begin for step, _ in known)
    return min(1.0, sum(bubble for _, bubble in known) / seconds) if seconds > 0.0 else None


def edges_for(arms: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """Bins that serve the step times of all arms (sorted, seconds); no bins where there are no steps."""
    some = [lengths for lengths in arms if lengths]
    if not some:
        return ()
    low = min(lengths[0] for lengths in some)
    high = max(min(lengths[-1], TAIL * quantile(lengths, 0.99)) for lengths in some)
    if high - low < 0.01 * high:  # all steps are equally long, but for the clock's last digits
        low, high = low * 0.95, high * 1.04
    return (*(low + (high - low) * number / BINS for number in range(BINS)), high)


def totals_of(spent: Iterable[Spent]) -> tuple[float, ...]:
    """Seconds by activity, over all these steps."""
    totals = [0.0] * len(ACTIVITIES)
    for one in spent:
        for place, seconds in enumerate(one.by):
            totals[place] += seconds
    return tuple(totals)


def step_times(lengths: Sequence[float], totals: Sequence[float], edges: Sequence[float]) -> StepTimes | None:
    """How long steps took, from their sorted lengths and their seconds by activity in total; None without steps."""
    from quorate.report.schema import StepTimes  # not above: the line a run ends with needs no schema

    if not lengths:
        return None
    counts = [0] * (len(edges) - 1)
    for length in lengths:
        counts[min(max(bisect_right(edges, length) - 1, 0), len(counts) - 1)] += 1
    return StepTimes(
        count=len(lengths),
        mean=statistics.fmean(lengths),
        p50=quantile(lengths, 0.50),
        p95=quantile(lengths, 0.95),
        p99=quantile(lengths, 0.99),
        edges=tuple(edges),
        counts=tuple(counts),
        shares={name: total / len(lengths) for name, total in zip(ACTIVITIES, totals, strict=True)},
    )


def by_rank(spent: Iterable[Spent]) -> Mapping[int, list[Spent]]:
    """The steps of each rank, in order of time."""
    found: dict[int, list[Spent]] = {}
    for one in spent:
        found.setdefault(one.rank, []).append(one)
    return {rank: sorted(own, key=lambda one: one.step.begin) for rank, own in sorted(found.items())}
