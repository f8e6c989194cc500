"""What happened to workers at moments of a run, as several ranks tell it: each once, on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from quorate.records.exclusion_rows import Excluded
from quorate.records.noise_rows import Noise
from quorate.records.rows import Distance, Gone, Joined, Log, Outer, Step
from quorate.report.reading.clocks import RunClock

T = TypeVar("T", Gone, Joined)
R = TypeVar("R", Gone, Joined, Log, Distance, Outer, Noise, Excluded)


def each_once(found: Iterable[Sequence[T]]) -> list[T]:
    """Of all ranks' rows, each once, in order: two ranks may have told of one where the first died as well."""
    known: dict[int, T] = {}
    for event in (event for one in found for event in one):
        there = known.get(event.rank)
        known[event.rank] = event if there is None or event.time < there.time else there
    return sorted(known.values(), key=lambda event: event.time)


def moved(events: Sequence[R], clock: RunClock) -> list[R]:
    """The same on the clock of the run."""
    return [replace(event, time=clock.at(event.time)) for event in events]


def standstill(death: Gone, steps: Mapping[int, Sequence[Step]]) -> float | None:
    """The longest time between the ends of two steps that lies around the noticing, of those that went on; seconds.

    None where nobody stepped on both sides of it.
    """
    longest = [
        late.end - early.end
        for rank, some in steps.items()
        if rank != death.rank
        for early, late in pairwise(some)
        if early.end <= death.time + 1.0 and late.end >= death.time - 1.0
    ]
    return max(longest, default=None)
