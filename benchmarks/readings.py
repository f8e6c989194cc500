"""What the records of a run say: gradients per second, rounds and who was in them, when a loss was reached."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

from quorate.records.records import records_of, rows
from quorate.report.figures.throughput import window_of
from quorate.report.reading.run import RunRecords
from quorate.report.topics.quality import final_quality

LOSS_STEPS = 3
"""Steps of all workers over which a training loss is averaged."""


WAITED = 1e-4
"""Seconds from which on a step has waited."""


@dataclass(frozen=True)
class Rounds:
    """The rounds of a run between the end of the warm-up and the first worker's end."""

    per_second: float
    contributors: float
    """Workers with something in a round, in the mean."""
    bytes: float
    """Sent by all workers, for one round."""
    applied: Counter[int]
    """Gradients in these rounds, by rank."""


def gradients_per_second(run: RunRecords, batch: int) -> float:
    """Of all workers, from the end of the warm-up to the moment the first worker ends: examples over `batch`."""
    window = window_of(run, run.usual_warm_up)
    rate = None if window is None else window.examples_per_second
    if rate is None:
        raise SystemExit("a run was too short to be measured")
    return rate / batch


def step_seconds(run: RunRecords) -> float:
    """The median step of all workers, after the warm-up."""
    return statistics.median(s.end - s.begin for one in run.ranks for s in one.steps if s.step > run.usual_warm_up)


@dataclass(frozen=True)
class Typical:
    """The steps of a run without imbalance, after the warm-up, in seconds: what a virtual twin is told."""

    own: float
    """The median of a step without its waiting."""
    scatter: float
    """Half of what the middle 68 % of these lie in: the standard deviation, if they were normal."""
    exchange: float
    """The median of the waiting in steps that waited."""


def typical(run: RunRecords) -> Typical:
    """Of all workers."""
    steps = [step for one in run.ranks for step in one.steps if step.step > run.usual_warm_up]
    own = [step.end - step.begin - step.wait for step in steps]
    waits = [step.wait for step in steps if step.wait > WAITED]
    hundredths = statistics.quantiles(own, n=100)
    return Typical(
        own=statistics.median(own),
        scatter=(hundredths[83] - hundredths[15]) / 2,
        exchange=statistics.median(waits) if waits else 0.0,
    )


def typical_together(run: RunRecords) -> Typical:
    """The same, of a run in which all wait for all: an exchange lasts as long as who comes last waits in it."""
    by_step: dict[int, list[float]] = {}
    for step in (step for one in run.ranks for step in one.steps if step.step > run.usual_warm_up):
        by_step.setdefault(step.step, []).append(step.wait)
    return replace(typical(run), exchange=statistics.median(min(waits) for waits in by_step.values()))


def span(run: RunRecords) -> tuple[float, float]:
    """From the end of the warm-up to the moment the first worker ends."""
    warm_up = run.usual_warm_up
    begin = max(max((s.end for s in one.steps if s.step <= warm_up), default=one.steps[0].begin) for one in run.ranks)
    return begin, min(one.steps[-1].end for one in run.ranks)


def produced(run: RunRecords) -> Counter[int]:
    """Gradients computed in that stretch, by rank: those that were ready to be given in it."""
    begin, end = span(run)
    return Counter({one.rank: sum(begin < step.arrive <= end for step in one.steps) for one in run.ranks})


def rounds_of(run: RunRecords) -> Rounds:
    """As rank 0 applied them; under a strategy without rounds of its own every step is one, of all workers."""
    begin, end = span(run)
    told = [row for row in rows(records_of(run.folder, 0)) if row["kind"] == "round" and begin < row["time"] <= end]
    applied: Counter[int] = Counter()
    if told:
        count = len(told)
        for row in told:
            applied.update({int(rank): sum(n for _, n in given) for rank, given in row["contributors"].items()})
        contributors = sum(len(row["contributors"]) for row in told) / count
    else:
        steps = [step for step in run.ranks[0].steps if begin < step.end <= end]
        count = len(steps)
        contributors = sum(step.contributors for step in steps) / count
        applied.update(dict.fromkeys(range(run.size), count))
    sent = sum(step.bytes_out for one in run.ranks for step in one.steps if begin < step.end <= end)
    return Rounds(count / (end - begin), contributors, sent / count, applied)


def share(counts: Counter[int], rank: int) -> float:
    """What `rank` has of all."""
    return counts[rank] / counts.total()


def seconds_to(loss: float, run: RunRecords) -> float | None:
    """From the first step's beginning until the training loss was `loss`; None where it never was.

    The training loss is the geometric mean of what `LOSS_STEPS` steps of all workers saw, at the mean of their times;
    between two such means it is taken as a straight line of its logarithm.
    """
    seen = sorted((step.end - run.begin, step.loss) for one in run.ranks for step in one.steps if step.loss is not None)
    width = LOSS_STEPS * run.size
    before: tuple[float, float] | None = None
    for first in range(len(seen) - width + 1):
        part = seen[first : first + width]
        if not all(math.isfinite(found) and found > 0 for _, found in part):
            return None
        time = sum(when for when, _ in part) / width
        level = sum(math.log(found) for _, found in part) / width - math.log(loss)
        if level <= 0:
            return time if before is None else before[0] + (time - before[0]) * before[1] / (before[1] - level)
        before = time, level
    return None


def final_loss(run: RunRecords) -> float:
    """On held-out points, at the end; infinite where training diverged."""
    found = final_quality(run, "squared_error")
    return math.inf if found is None else found


def longest_silence(run: RunRecords, without: int) -> float:
    """Seconds between two steps of a worker at most, after the warm-up, of all but the worker `without`."""
    longest = 0.0
    for one in run.ranks:
        ends = [step.end for step in one.steps if step.step > run.usual_warm_up]
        if one.rank != without:
            longest = max([longest, *(after - before for before, after in pairwise(ends))])
    return longest
