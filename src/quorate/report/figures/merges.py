"""Merges of learners in one run: who was in each, with which weight and age (`records.merges`), and how long was waited
for more of them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorate.records.merges import merged_in
from quorate.report.reading.rounds import RoundRecord
from quorate.report.schema_parts import Merge, MergesSummary

SHOWN = 400
"""Merges that are drawn, at most: the last ones."""


@dataclass(frozen=True, kw_only=True)
class MergeFigures:
    """Of one run."""

    shown: Sequence[Merge]
    count: int
    windows: Sequence[float]
    """Seconds; empty where rounds have no window."""
    weights: dict[int, float]
    """By rank: the sum of its shares of merges."""
    ages: dict[int, float]
    """By rank: the mean age of what was merged, by shares."""


def figures_of_merges(rounds: Sequence[RoundRecord], seconds_at: Callable[[float], float]) -> MergeFigures | None:
    """`seconds_at` makes of a time the run's training time then. None where nobody told weights."""
    found = [merge for one in rounds if (merge := _merge(one, seconds_at)) is not None]
    if not found:
        return None
    weights, old = defaultdict[int, float](float), defaultdict[int, float](float)
    for merge in found:
        for rank, share, age in merge.given:
            weights[rank] += share
            old[rank] += share * age
    return MergeFigures(
        shown=found[-SHOWN:],
        count=len(found),
        windows=[one.window for one in rounds if one.window is not None and one.told],
        weights=dict(weights),
        ages={rank: old[rank] / weight for rank, weight in weights.items() if weight},
    )


def _merge(one: RoundRecord, seconds_at: Callable[[float], float]) -> Merge | None:
    found = merged_in(one.number, one.told, one.taken, settles=one.settles)
    if found is None:
        return None
    return Merge(number=one.number, fragment=found.fragment, time=seconds_at(one.time), given=found.shares)


def merges_summary(runs: Sequence[MergeFigures]) -> MergesSummary | None:
    """Of all runs of an arm together; the merges that are drawn are those of the first."""
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
