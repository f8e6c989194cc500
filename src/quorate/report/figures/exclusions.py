"""Whose gradients were left out of sums, why, and when."""

from __future__ import annotations

from collections import defaultdict

from quorate.report.reading.run import RunRecords
from quorate.report.schema_exclusions import Exclusion, ExclusionsSummary

SHOWN = 200


def exclusions_of(run: RunRecords, seed: int) -> ExclusionsSummary | None:
    """As the ranks that were the first in turn have recorded it; None where nobody was left out."""
    rows = sorted((row for one in run.ranks for row in one.exclusions), key=lambda row: row.time)
    counts, times = defaultdict[tuple[int, str], int](int), defaultdict[tuple[int, str], list[float]](list)
    for row in rows:
        for told in row.ranks:
            if len(told) != 3 or not (isinstance(told[0], int) and isinstance(told[2], int)):
                continue
            key = told[0], str(told[1])
            counts[key] += told[2]
            times[key].append(run.training_seconds(row.time))
    if not counts or not run.has_steps:
        return None
    sums = max((step.round for one in run.ranks for step in one.steps), default=0)
    sums = max(sums, *counts.values())
    ranks = [
        Exclusion(
            rank=rank,
            why=why,
            count=count,
            share=count / sums,
            first=times[rank, why][0],
            last=times[rank, why][-1],
            times=tuple(times[rank, why][:: -(-len(times[rank, why]) // SHOWN)]),
        )
        for (rank, why), count in sorted(counts.items())
    ]
    return ExclusionsSummary(seed=seed, sums=sums, ranks=tuple(ranks))
