"""The quality of the model over time: curves of one run, their ends, and the time of the target."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from quorate.report.reading.run import RunRecords
from quorate.report.schema import Curve

POINTS = 200
"""The most points of a curve of losses."""
DIGITS = 8
"""Significant digits of a quality or a loss."""


@dataclass(frozen=True)
class Amounts:
    """Running totals of all workers by time, on the clock of the run."""

    times: Sequence[float]
    examples: Sequence[int] | None
    """With a 0 before the first; None if a step did not count them."""
    bytes: Sequence[int]
    """With a 0 before the first."""
    byte_times: Sequence[float]

    @classmethod
    def of(cls, run: RunRecords) -> Amounts:
        steps = sorted((step for rank in run.ranks for step in rank.steps), key=lambda step: step.end)
        all_steps = sorted((s for rank in run.ranks for s in (*rank.steps, *rank.others)), key=lambda step: step.end)
        counts = [step.examples for step in steps]
        examples = [count for count in counts if count is not None]
        return cls(
            [step.end for step in steps],
            list(accumulate(examples, initial=0)) if len(examples) == len(counts) else None,
            list(accumulate((step.bytes_out for step in all_steps), initial=0)),
            [step.end for step in all_steps],
        )

    def examples_at(self, time: float) -> int | None:
        """Return the examples in steps that had ended by `time`."""
        return None if self.examples is None else self.examples[bisect_right(self.times, time)]

    def bytes_at(self, time: float) -> int:
        """Return the bytes that all workers had sent by `time`."""
        return self.bytes[bisect_right(self.byte_times, time)]


def curve_of(run: RunRecords, metric: str, seed: int, amounts: Amounts | None = None) -> Curve | None:
    """Return the quality at every evaluation, as rank 0 logged it under the metric's name; None if it never did.

    Seconds are since rank 0 began its first step, without its evaluations. Values that are not finite are left out.
    """
    first = next((rank for rank in run.ranks if rank.rank == 0), None)
    if first is None or not first.steps:
        return None
    points = [(log.time, log.values[metric]) for log in first.logs if is_number(log.values.get(metric))]
    if not points:
        return None
    return _curve(run, seed, [(time, first.training_seconds(time, run.begin), y) for time, y in points], amounts)


def distances_of(run: RunRecords) -> list[tuple[float, float, float]]:
    """Return points (time, seconds of training, distance), one for each evaluation of the first optimizer.

    The distance is the root mean square over the replicas, as a share of the norm of their mean (consensus distance).
    Evaluations without a row of every rank are left out.
    """
    ranks = [rank for rank in run.ranks if rank.steps]
    first = ranks[0].distributed.get("optimizer") if ranks else None
    columns = [[row for row in rank.distances if first is None or row.optimizer == first] for rank in ranks]
    points = []
    for rows in zip(*columns, strict=False) if len(ranks) == run.size else ():
        norm = rows[0].norm
        if norm > 0.0:
            far = math.sqrt(sum(row.distance**2 for row in rows) / len(rows)) / norm
            points.append((rows[0].time, ranks[0].training_seconds(rows[0].time, run.begin), far))
    return points


def distance_curve(run: RunRecords, seed: int, amounts: Amounts | None = None) -> Curve | None:
    """Return the distance between replicas at every evaluation, in place of the quality; None if they do not differ."""
    points = distances_of(run)
    return _curve(run, seed, points, amounts) if points else None


def losses_of(run: RunRecords, seed: int, amounts: Amounts | None = None) -> Curve | None:
    """Return the training loss, mean over ranks and neighbouring steps, in at most `POINTS` points; None if unknown."""
    rows = sorted(
        (rank.training_seconds(step.end, run.begin), step.end, step.loss)
        for rank in run.ranks
        for step in rank.steps
        if is_number(step.loss)
    )
    if not rows:
        return None
    ranks = sum(bool(rank.steps) for rank in run.ranks)
    width = -(-len(rows) // (POINTS * ranks)) * ranks
    parts = [rows[begin : begin + width] for begin in range(0, len(rows), width)]
    points = [
        (part[-1][1], part[-1][0], statistics.fmean(loss for _, _, loss in part if loss is not None)) for part in parts
    ]
    return _curve(run, seed, points, amounts)


def _curve(run: RunRecords, seed: int, points: Sequence[tuple[float, float, float]], amounts: Amounts | None) -> Curve:
    amounts = amounts or Amounts.of(run)
    examples = [amounts.examples_at(time) for time, _, _ in points]
    return Curve(
        seed=seed,
        seconds=tuple(round(seconds, 6) for _, seconds, _ in points),
        examples=tuple(count for count in examples if count is not None),
        bytes=tuple(amounts.bytes_at(time) for time, _, _ in points),
        quality=tuple(float(f"{value:.{DIGITS}g}") for _, _, value in points),
    )


def is_number(value: object) -> bool:
    """Return whether a value can be drawn: a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def final_quality(run: RunRecords, metric: str) -> float | None:
    """Return the quality at the last evaluation; None if there was none, or it was not finite."""
    values = [log.values[metric] for rank in run.ranks if rank.rank == 0 for log in rank.logs if metric in log.values]
    return float(values[-1]) if values and is_number(values[-1]) else None


def time_to(target: float, curve: Curve, *, higher_is_better: bool) -> float | None:
    """Return the seconds of training until the first evaluation that meets the target; None if none does."""
    for seconds, quality in zip(curve.seconds, curve.quality, strict=True):
        if quality >= target if higher_is_better else quality <= target:
            return seconds
    return None


def went_wrong(run: RunRecords, metric: str | None) -> str | None:
    """Return a sentence on a loss or metric that is not finite, as of diverged training; else None."""
    for rank in run.ranks:
        for step in rank.steps:
            if step.loss is not None and not math.isfinite(step.loss):
                return f"the loss of rank {rank.rank} is not a number at step {step.step}"
        for log in rank.logs:
            value = None if metric is None else log.values.get(metric)
            if isinstance(value, float) and not math.isfinite(value):
                return f"{metric} is not a number at step {log.step}"
    return None
