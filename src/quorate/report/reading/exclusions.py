"""Gradients that were left out of the means of a run, as its workers have recorded it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from quorate.report.reading.run import RunRecords


@dataclass
class LeftOut:
    """The exclusions of one rank, for one reason."""

    rank: int
    why: str
    count: int = 0
    """The number of sums."""
    times: list[float] = field(default_factory=list)
    """Times of records, in seconds of training time."""


def left_out_of(run: RunRecords) -> tuple[list[LeftOut], int]:
    """Return exclusions by rank and reason, and the number of sums."""
    exclusions: dict[tuple[int, str], LeftOut] = {}
    rows = sorted((row for rank in run.ranks for row in rank.exclusions), key=lambda row: row.time)
    for row in rows:
        for entry in row.ranks:
            if len(entry) == 3 and isinstance(entry[0], int) and isinstance(entry[2], int):
                exclusion = exclusions.setdefault((entry[0], str(entry[1])), LeftOut(entry[0], str(entry[1])))
                exclusion.count += entry[2]
                exclusion.times.append(run.training_seconds(row.time))
    newest = defaultdict[str, int](int)
    for step in (step for rank in run.ranks for step in rank.steps):
        newest[step.optimizer] = max(newest[step.optimizer], step.round)
    sums = max(1, sum(newest.values()), *(exclusion.count for exclusion in exclusions.values()))
    return [exclusion for _, exclusion in sorted(exclusions.items())], sums
