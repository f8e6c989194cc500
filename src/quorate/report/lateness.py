"""Who is slow: when each rank came to the meeting point, held side by side.

A synchronous exchange ends for all at once, so the fast ranks' steps are as long as the slow one's: step times do not
tell. Arrivals do. Where nobody waits there is no meeting point to be late at; there a rank's own step time tells.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quorate.core.records import Step
from quorate.report.meetings import Key, Meetings, lateness_of
from quorate.report.statistics import chance_of_at_least, quantile

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
    """How one rank came to the meeting point; seconds."""

    rank: int
    mean: float
    median: float
    p95: float
    last_share: float
    """The share of the meetings in which nobody came later, and somebody earlier."""
    is_often_last: bool
    """Whether that share is beyond chance."""
    step_mean: float
    step_median: float


@dataclass(frozen=True)
class Skew:
    """How all ranks of one run came to the meeting point."""

    ranks: tuple[Lateness, ...]
    is_together: bool
    """Whether they wait for each other; else they have no meeting point to be late at."""
    slow: tuple[Lateness, ...]
    """Ranks that are slower than the others beyond chance, the slowest first."""
    last_median: float
    """Seconds from the first to arrive to the last, in half of the meetings at most."""
    columns: tuple[int, ...]
    """The step that each column of the heat map begins with."""
    heat: tuple[tuple[float | None, ...], ...]
    """Mean lateness by rank (rows, as in `ranks`) and range of meetings (columns)."""

    @property
    def others(self) -> list[Lateness]:
        """Those that are not slow; all of them where all are."""
        return [one for one in self.ranks if one not in self.slow] or list(self.ranks)

    @property
    def step_matters(self) -> float:
        """Lateness that matters, in seconds."""
        return _matters(statistics.fmean(one.step_mean for one in self.ranks))


def skew_of(meetings: Meetings, steps: Mapping[int, Sequence[Step]]) -> Skew | None:
    """The skew of the steps (by rank) that made these meetings; None where no two ranks ever met.

    A rank is slow if it is last far more often than chance would have it (binomial, at `SURPRISE` over all ranks)
    *and* its median lateness is greater than the others' by an amount that matters. So a delay that hits a rank drawn
    anew in every step makes none slow.
    """
    keys = (
        meetings.complete if meetings.is_together else [key for key, there in meetings.steps.items() if len(there) > 1]
    )
    if not keys:
        return None
    late: dict[int, list[float]] = {rank: [] for rank in meetings.ranks}
    last = dict.fromkeys(meetings.ranks, 0)
    ends = []
    for key in keys:
        seconds = lateness_of(meetings.steps[key])
        ends.append(max(seconds.values()))
        for rank, own in seconds.items():
            late[rank].append(own)
            last[rank] += own == ends[-1] > 0.0
    size = sum(map(bool, late.values()))
    found = [_of_rank(rank, late[rank], last[rank], size, steps[rank]) for rank in meetings.ranks if late[rank]]
    slow = _late(found) if meetings.is_together else _slower(found, steps)
    columns, heat = _heat(meetings, keys, [one.rank for one in found])
    return Skew(tuple(found), meetings.is_together, tuple(slow), statistics.median(ends), columns, heat)


def _matters(step_seconds: float) -> float:
    return max(LEAST_SECONDS, LEAST_SHARE * step_seconds)


def _of_rank(rank: int, late: list[float], last: int, size: int, steps: Sequence[Step]) -> Lateness:
    late.sort()
    lengths = [step.end - step.begin for step in steps]
    chance = 1.0 / size
    return Lateness(
        rank=rank,
        mean=statistics.fmean(late),
        median=quantile(late, 0.5),
        p95=quantile(late, 0.95),
        last_share=last / len(late),
        is_often_last=last >= EFFECT * chance * len(late)
        and chance_of_at_least(last, len(late), chance) < SURPRISE * chance,
        step_mean=statistics.fmean(lengths),
        step_median=statistics.median(lengths),
    )


def _late(found: list[Lateness]) -> list[Lateness]:
    """Where all wait for all: ranks that are last beyond chance, and usually late by an amount that matters."""
    rest = [one.median for one in found if not one.is_often_last] or [min(one.median for one in found)]
    least = statistics.median(rest) + _matters(statistics.fmean(one.step_mean for one in found))
    slow = [one for one in found if one.is_often_last and one.median > least]
    return sorted(slow, key=lambda one: (-one.last_share, -one.median, one.rank))


def _slower(found: list[Lateness], steps: Mapping[int, Sequence[Step]]) -> list[Lateness]:
    """Where nobody waits: ranks whose steps are nearly all longer than the others' usual one (a sign test)."""
    slow = []
    for one in found:
        usual = statistics.median(other.step_median for other in found if other is not one)
        longer = sum(step.end - step.begin > usual for step in steps[one.rank])
        chance = chance_of_at_least(longer, len(steps[one.rank]), 0.5)
        if one.step_median > usual + _matters(usual) and chance < SURPRISE / len(found):
            slow.append(one)
    return sorted(slow, key=lambda one: (-one.step_median, one.rank))


def _heat(
    meetings: Meetings, keys: Sequence[Key], ranks: Iterable[int]
) -> tuple[tuple[int, ...], tuple[tuple[float | None, ...], ...]]:
    """The first step of every column, and the mean lateness by rank and column."""
    width = -(-len(keys) // COLUMNS)
    parts = [keys[begin : begin + width] for begin in range(0, len(keys), width)]
    late = [[lateness_of(meetings.steps[key]) for key in part] for part in parts]
    firsts = [min(step.step for step in meetings.steps[part[0]].values()) for part in parts]
    return tuple(firsts), tuple(tuple(_mean(part, rank) for part in late) for rank in ranks)


def _mean(meetings: Iterable[Mapping[int, float]], rank: int) -> float | None:
    """Of one rank's lateness, over the meetings it was at."""
    own = [late[rank] for late in meetings if rank in late]
    return round(statistics.fmean(own), 6) if own else None
