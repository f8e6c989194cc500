"""Merges of learners in one run: members with their weights and ages (`records.merges`), and the waits for members."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorate.records.merges import merged_in
from quorate.report.reading.rounds import RoundRecord
from quorate.report.schema_parts import Merge, MergesSummary

SHOWN = 400
"""The most merges that are drawn: the last ones."""


@dataclass(frozen=True, kw_only=True)
class MergeFigures:
    """The merges of one run."""

    shown: Sequence[Merge]
    count: int
    windows: Sequence[float]
    """Seconds; empty if rounds have no window."""
    weights: dict[int, float]
    """By rank: the sum of its shares of merges."""
    ages: dict[int, float]
    """By rank: the mean age of its merged deltas, weighted by shares."""


def figures_of_merges(rounds: Sequence[RoundRecord], seconds_at: Callable[[float], float]) -> MergeFigures | None:
    """Return the merges of `rounds`; None if no weights were recorded.

    `seconds_at` converts a time to seconds of the run's training.
    """
    merges = [merge for record in rounds if (merge := _merge(record, seconds_at)) is not None]
    if not merges:
        return None
    weights, old = defaultdict[int, float](float), defaultdict[int, float](float)
    for merge in merges:
        for rank, share, age in merge.given:
            weights[rank] += share
            old[rank] += share * age
    return MergeFigures(
        shown=merges[-SHOWN:],
        count=len(merges),
        windows=[record.window for record in rounds if record.window is not None and record.headers],
        weights=dict(weights),
        ages={rank: old[rank] / weight for rank, weight in weights.items() if weight},
    )


def _merge(record: RoundRecord, seconds_at: Callable[[float], float]) -> Merge | None:
    merged = merged_in(record.number, record.headers, record.taken, settles=record.settles)
    if merged is None:
        return None
    return Merge(number=record.number, fragment=merged.fragment, time=seconds_at(record.time), given=merged.shares)


def merges_summary(runs: Sequence[MergeFigures]) -> MergesSummary | None:
    """Return the summary of all runs of an arm together; the merges that are drawn are those of the first."""
    if not runs:
        return None
    windows = sorted(window for run in runs for window in run.windows)
    ranks = sorted({rank for run in runs for rank in run.weights})
    total = sum(weight for run in runs for weight in run.weights.values())
    weights = {rank: sum(run.weights.get(rank, 0.0) for run in runs) for rank in ranks}
    old = {rank: sum(run.weights.get(rank, 0.0) * run.ages.get(rank, 0.0) for run in runs) for rank in ranks}
    return MergesSummary(
        count=sum(run.count for run in runs),
        window_mean=statistics.fmean(windows) if windows else None,
        window_p95=windows[round(0.95 * (len(windows) - 1))] if windows else None,
        shares=tuple((rank, weights[rank] / total, old[rank] / weights[rank]) for rank in ranks if weights[rank]),
        shown=tuple(runs[0].shown),
    )
