"""Deaths and joins during a run, as several ranks record them: each once, on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from quorate.records.rows import Distance, Excluded, Gone, Joined, Log, Noise, Outer, Step
from quorate.report.reading.clocks import RunClock

T = TypeVar("T", Gone, Joined)
R = TypeVar("R", Gone, Joined, Log, Distance, Outer, Noise, Excluded)


def each_once(rows: Iterable[Sequence[T]]) -> list[T]:
    """Return the rows of all ranks in order, one for each event: a second rank may have recorded it as well."""
    by_rank: dict[int, T] = {}
    for event in (event for rank_rows in rows for event in rank_rows):
        other = by_rank.get(event.rank)
        by_rank[event.rank] = event if other is None or event.time < other.time else other
    return sorted(by_rank.values(), key=lambda event: event.time)


def moved(events: Sequence[R], clock: RunClock) -> list[R]:
    """Return the same events on the clock of the run."""
    return [replace(event, time=clock.at(event.time)) for event in events]


def standstill(death: Gone, steps: Mapping[int, Sequence[Step]]) -> float | None:
    """Return the longest time in seconds between two steps of a surviving rank around the notice of a death.

    None if nobody stepped on both sides of it.
    """
    longest = [
        late.end - early.end
        for rank, rank_steps in steps.items()
        if rank != death.rank
        for early, late in pairwise(rank_steps)
        if early.end <= death.time + 1.0 and late.end >= death.time - 1.0
    ]
    return max(longest, default=None)
