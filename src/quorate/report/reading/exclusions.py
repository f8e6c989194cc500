"""Whose gradients were left out of the means of a run, as its workers have told."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from quorate.report.reading.run import RunRecords


@dataclass
class LeftOut:
    """Of one rank, for one reason."""

    rank: int
    why: str
    count: int = 0
    """In how many sums."""
    times: list[float] = field(default_factory=list)
    """When it was told of; seconds of training time."""


def left_out_of(run: RunRecords) -> tuple[list[LeftOut], int]:
    """By rank and reason, and how many sums there were."""
    found: dict[tuple[int, str], LeftOut] = {}
    rows = sorted((row for one in run.ranks for row in one.exclusions), key=lambda row: row.time)
    for row in rows:
        for told in row.ranks:
            if len(told) == 3 and isinstance(told[0], int) and isinstance(told[2], int):
                one = found.setdefault((told[0], str(told[1])), LeftOut(told[0], str(told[1])))
                one.count += told[2]
                one.times.append(run.training_seconds(row.time))
    newest = defaultdict[str, int](int)
    for step in (step for one in run.ranks for step in one.steps):
        newest[step.optimizer] = max(newest[step.optimizer], step.round)
    sums = max(1, sum(newest.values()), *(one.count for one in found.values()))
    return [one for _, one in sorted(found.items())], sums
