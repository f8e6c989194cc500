"""Who is slow: when each rank came to the meeting point, held side by side.

A synchronous exchange ends for all at once, so the fast ranks' steps are as long as the slow one's: step times do not
tell. Arrivals do. Where not everybody waits for everybody, nobody comes late to anything. There steps of equal number
are held side by side, and lateness is how much longer a rank was at work on its step than the fastest on the same:
what it would have been late by, had all begun together.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from quorate.records.rows import Step
from quorate.report.figures.in_step import busy, in_order, side_by_side
from quorate.report.figures.statistics import chance_of_at_least, quantile
from quorate.report.reading.meetings import Meetings, lateness_of

COLUMNS = 120
"""Of the heat map, at most."""
SURPRISE = 0.001
"""A rank is beyond chance where so unlikely a count, divided by the number of ranks, was found."""
EFFECT = 1.5
"""... and where it is so many times what chance gives."""
LEAST_SHARE = 0.05
"""Lateness that matters, of a step's time."""
LEAST_SECONDS = 0.001


@dataclass(frozen=True)
class Lateness:
    """How one rank came to the meeting point, or would have come; seconds."""

    rank: int
    mean: float
    median: float
    p95: float
    last_share: float
    """The share of the meetings in which nobody came later, and somebody earlier."""
    is_often_last: bool
    """Whether that share is beyond chance."""
    step_mean: float
    busy_median: float
    """Of the time at work on a step, until it arrived."""


@dataclass(frozen=True)
class Skew:
    """How all ranks of one run came to the meeting point."""

    ranks: tuple[Lateness, ...]
    is_together: bool
    """Whether everybody waits for everybody; else there was no meeting point to be late at."""
    slow: tuple[Lateness, ...]
    """Ranks that are significantly slower than the others, the slowest first."""
    last_median: float
    """Seconds from the first to arrive to the last, in half of the meetings at most."""
    columns: tuple[int, ...]
    """The step that each column of the heat map begins with; they rise."""
    heat: tuple[tuple[float | None, ...], ...]
    """Mean lateness by rank (rows, as in `ranks`) and range of steps (columns)."""

    @property
    def others(self) -> list[Lateness]:
        """Those that are not slow; all of them where all are."""
        return [one for one in self.ranks if one not in self.slow] or list(self.ranks)

    @property
    def step_matters(self) -> float:
        """Lateness that matters, in seconds."""
        return _matters(statistics.fmean(one.step_mean for one in self.ranks))


def skew_of(
    meetings: Meetings,
    steps: Mapping[int, Sequence[Step]],
    every: Mapping[int, Sequence[Step]] | None = None,
    newcomers: Collection[int] = (),
) -> Skew | None:
    """The skew of the steps (by rank) that made these meetings; None where no two ranks ever met, or could have met.

    `every` has the steps that are no measure of waiting as well (next after an evaluation): they count where none is.
    `newcomers` joined later: they meet the others where all wait for all, and have no step of equal number elsewhere.

    A rank is slow if it is last far more often than chance would have it (binomial, at `SURPRISE` over all ranks)
    *and* its median lateness is greater than the others' by an amount that matters. So a delay that hits a rank drawn
    anew in every step makes none slow.
    """
    together = meetings.is_together
    if together:
        met = [meetings.steps[key] for key in meetings.complete]
    else:
        met = _apart({rank: (every or steps)[rank] for rank in meetings.ranks if rank not in newcomers})
    if not met:
        return None
    late: dict[int, list[float]] = {rank: [] for rank in meetings.ranks}
    last, chances = dict.fromkeys(meetings.ranks, 0), dict.fromkeys(meetings.ranks, 0.0)
    seconds = [lateness_of(there) if together else _longer(there) for there in met]
    for one in seconds:
        latest = max(one.values())
        for rank, own in one.items():
            late[rank].append(own)
            last[rank] += own == latest > 0.0
            chances[rank] += 1.0 / len(one)
    found = [
        _of_rank(rank, late[rank], last[rank], chances[rank] / len(late[rank]), steps[rank])
        for rank in meetings.ranks
        if late[rank]
    ]
    slow = _late(found) if together else _slower(found, steps)
    firsts = [_number(there, newcomers) for there in met]
    columns, heat = _heat(firsts, seconds, [one.rank for one in found])
    last_median = statistics.median(max(one.values()) for one in seconds)
    return Skew(tuple(found), together, tuple(slow), last_median, columns, heat)


def _number(there: Mapping[int, Step], newcomers: Collection[int]) -> int:
    """Which step this is, as those count that were there at the start, if any is left."""
    return min([s.step for rank, s in there.items() if rank not in newcomers] or [s.step for s in there.values()])


def _apart(steps: Mapping[int, Sequence[Step]]) -> list[dict[int, Step]]:
    """Steps of equal number; where few are known of all ranks (of long records only the ends were read), in order."""
    shortest = min((len(own) for own in steps.values()), default=0)
    found = side_by_side(steps)
    return list((found if 2 * len(found) >= shortest else in_order(steps)).values())


def _longer(there: Mapping[int, Step]) -> dict[int, float]:
    """Seconds by which each rank was longer at work on its step than the fastest."""
    shortest = min(busy(step) for step in there.values())
    return {rank: busy(step) - shortest for rank, step in there.items()}


def _matters(step_seconds: float) -> float:
    return max(LEAST_SECONDS, LEAST_SHARE * step_seconds)


def _of_rank(rank: int, late: list[float], last: int, chance: float, steps: Sequence[Step]) -> Lateness:
    late.sort()
    lengths = [step.end - step.begin for step in steps]
    return Lateness(
        rank=rank,
        mean=statistics.fmean(late),
        median=quantile(late, 0.5),
        p95=quantile(late, 0.95),
        last_share=last / len(late),
        is_often_last=last >= EFFECT * chance * len(late)
        and chance_of_at_least(last, len(late), chance) < SURPRISE * chance,
        step_mean=statistics.fmean(lengths),
        busy_median=statistics.median(map(busy, steps)),
    )


def _late(found: list[Lateness]) -> list[Lateness]:
    """Where all wait for all: ranks that are last beyond chance, and usually late by an amount that matters."""
    rest = [one.median for one in found if not one.is_often_last] or [min(one.median for one in found)]
    least = statistics.median(rest) + _matters(statistics.fmean(one.step_mean for one in found))
    slow = [one for one in found if one.is_often_last and one.median > least]
    return sorted(slow, key=lambda one: (-one.last_share, -one.median, one.rank))


def _slower(found: list[Lateness], steps: Mapping[int, Sequence[Step]]) -> list[Lateness]:
    """Where nobody meets: ranks that are nearly always longer at work than the others usually are (a sign test)."""
    slow = []
    for one in found:
        usual = statistics.median(other.busy_median for other in found if other is not one)
        longer = sum(busy(step) > usual for step in steps[one.rank])
        chance = chance_of_at_least(longer, len(steps[one.rank]), 0.5)
        if one.busy_median > usual + _matters(usual) and chance < SURPRISE / len(found):
            slow.append(one)
    return sorted(slow, key=lambda one: (-one.busy_median, one.rank))


def _heat(
    firsts: Sequence[int], seconds: Sequence[Mapping[int, float]], ranks: Iterable[int]
) -> tuple[tuple[int, ...], tuple[tuple[float | None, ...], ...]]:
    """The first step of every column, and the mean lateness by rank and column."""
    width = -(-len(seconds) // COLUMNS)
    parts = [seconds[begin : begin + width] for begin in range(0, len(seconds), width)]
    # Ranks that come later count their steps from 1 again; columns are in order of time all the same.
    columns = tuple(accumulate(firsts[::width], max))
    return columns, tuple(tuple(_mean(part, rank) for part in parts) for rank in ranks)


def _mean(late: Iterable[Mapping[int, float]], rank: int) -> float | None:
    """Of one rank's lateness, where it was there."""
    own = [one[rank] for one in late if rank in one]
    return round(statistics.fmean(own), 6) if own else None
