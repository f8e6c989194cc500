"""Slow ranks: the steps of ranks that met, and the times at which the ranks came to the meeting point, compared.

A synchronous exchange ends for all at once, so the fast ranks' steps are as long as the slow one's, and only
arrivals differ. Where not everybody waits for everybody, nobody comes late to anything. Steps of equal number are
compared there. Lateness is how much longer a rank computed its step than the fastest rank computed the same step: its
lateness, had all begun together.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from quorate.records.rows import Step
from quorate.report.reading.rounds import MOST
from quorate.report.statistics import chance_of_at_least, quantile
from quorate.report.wording import ranks_named, seconds_in_words, share_in_words

Key = tuple[int, int]
"""The round, and the number of a rank's step within that round."""


@dataclass(frozen=True)
class Meetings:
    """All meetings of a run in order: steps of different ranks after which replicas had applied equally many updates.

    Where everybody waits for everybody these are the steps of equal number. Elsewhere, a slow rank is missing in many
    meetings, and the present ranks have not waited for each other.
    """

    steps: dict[Key, dict[int, Step]]
    ranks: tuple[int, ...]
    """The ranks that took any of the steps."""
    complete: tuple[Key, ...]
    """Meetings of two ranks or more without a missing rank, counting those that trained at the time."""
    is_together: bool
    """Whether everybody waits for everybody; False for a single rank."""


def meetings_of(steps: Mapping[int, Sequence[Step]], *, is_together: bool | None = None) -> Meetings:
    """Match the steps of all ranks; a step of one rank alone is a meeting of one.

    Everybody waits for everybody if enough meetings are complete, unless `is_together` says so.
    """
    meetings: dict[Key, dict[int, Step]] = {}
    for rank, rank_steps in steps.items():
        for key, step in zip(keys_of(rank_steps), rank_steps, strict=True):
            meetings.setdefault(key, {})[rank] = step
    lives = {rank: (rank_steps[0].round, rank_steps[-1].round) for rank, rank_steps in steps.items() if rank_steps}
    in_order = dict(sorted(meetings.items()))
    complete = [
        key
        for key, meeting in in_order.items()
        if len(meeting) > 1 and len(meeting) == sum(first <= key[0] <= last for first, last in lives.values())
    ]
    if is_together is None:
        is_together = len(complete) >= MOST * len(in_order)
    return Meetings(in_order, tuple(lives), tuple(complete), is_together and bool(complete))


def keys_of(steps: Sequence[Step]) -> list[Key]:
    """Return the meeting of each step of one rank, in order."""
    keys: list[Key] = []
    for step in steps:
        again = bool(keys) and keys[-1][0] == step.round
        keys.append((step.round, keys[-1][1] + 1 if again else 0))
    return keys


def lateness_of(meeting: Mapping[int, Step]) -> dict[int, float]:
    """Return the seconds that each rank arrived after the first of one meeting."""
    first = min(step.arrive for step in meeting.values())
    return {rank: step.arrive - first for rank, step in meeting.items()}


def side_by_side(steps: Mapping[int, Sequence[Step]]) -> dict[int, dict[int, Step]]:
    """Return the first step of every rank, the second, and so on, by number and rank: as many as all ranks have.

    The ranks, two at least, did not take them at the same time, but would have met had everybody waited for everybody.
    """
    if len(steps) < 2:
        return {}
    ranks = {rank: {step.step: step for step in rank_steps} for rank, rank_steps in steps.items()}
    common = set.intersection(*(set(numbers) for numbers in ranks.values()))
    return {number: {rank: rank_steps[number] for rank, rank_steps in ranks.items()} for number in sorted(common)}


def in_order(steps: Mapping[int, Sequence[Step]]) -> dict[int, dict[int, Step]]:
    """Return the steps by place: the first known one of every rank, the second, and so on."""
    if len(steps) < 2:
        return {}
    together = zip(*steps.values(), strict=False)
    return {place: dict(zip(steps, meeting, strict=True)) for place, meeting in enumerate(together)}


def busy(step: Step) -> float:
    """Return the seconds that the worker was at work on the step by itself."""
    return step.arrive - step.begin


COLUMNS = 120
"""The most columns of the heat map."""
SURPRISE = 0.001
"""A rank is beyond chance if its count has at most this probability, divided by the number of ranks ..."""
EFFECT = 1.5
"""... and is so many times the count by chance."""
LEAST_SHARE = 0.05
"""Lateness that matters, as a share of a step's time."""
LEAST_SECONDS = 0.001


@dataclass(frozen=True)
class Lateness:
    """The lateness of one rank at the meeting point, or what it would have been; seconds."""

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
    """The median time at work on a step, until the arrival."""


@dataclass(frozen=True)
class Skew:
    """The lateness of all ranks of one run."""

    ranks: tuple[Lateness, ...]
    is_together: bool
    """Whether everybody waits for everybody; else there was no meeting point to be late at."""
    slow: tuple[Lateness, ...]
    """Ranks that are significantly slower than the others, the slowest first."""
    last_median: float
    """Seconds from the first to arrive to the last, in half of the meetings at most."""
    columns: tuple[int, ...]
    """The first step of each column of the heat map; they rise."""
    heat: tuple[tuple[float | None, ...], ...]
    """Mean lateness by rank (rows, as in `ranks`) and range of steps (columns)."""

    @property
    def others(self) -> list[Lateness]:
        """The ranks that are not slow; all of them if all are."""
        return [rank for rank in self.ranks if rank not in self.slow] or list(self.ranks)

    @property
    def step_matters(self) -> float:
        """Lateness that matters, in seconds."""
        return _matters(statistics.fmean(rank.step_mean for rank in self.ranks))


def skew_of(
    meetings: Meetings,
    steps: Mapping[int, Sequence[Step]],
    every: Mapping[int, Sequence[Step]] | None = None,
    newcomers: Collection[int] = (),
) -> Skew | None:
    """Return the skew of the steps (by rank) of these meetings; None if no two ranks ever met, or could have met.

    `every` has all steps, including those after an evaluation, which do not measure waiting: they count where none is.
    `newcomers` joined later: they meet the others where all wait for all, and have no step of equal number elsewhere.

    A rank is slow if it is last far more often than by chance (binomial, at `SURPRISE` over all ranks). Its median
    lateness must *also* be greater than the others' by an amount that matters. So a delay that hits a rank drawn again
    in every step makes none slow.
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
    seconds = [lateness_of(meeting) if together else _longer(meeting) for meeting in met]
    for delays in seconds:
        latest = max(delays.values())
        for rank, delay in delays.items():
            late[rank].append(delay)
            last[rank] += delay == latest > 0.0
            chances[rank] += 1.0 / len(delays)
    ranks = [
        _of_rank(rank, late[rank], last[rank], chances[rank] / len(late[rank]), steps[rank])
        for rank in meetings.ranks
        if late[rank]
    ]
    slow = _late(ranks) if together else _slower(ranks, steps)
    firsts = [_number(meeting, newcomers) for meeting in met]
    columns, heat = _heat(firsts, seconds, [rank.rank for rank in ranks])
    last_median = statistics.median(max(delays.values()) for delays in seconds)
    return Skew(tuple(ranks), together, tuple(slow), last_median, columns, heat)


def _number(meeting: Mapping[int, Step], newcomers: Collection[int]) -> int:
    """Return the number of a step, as counted by the ranks of the start if any is left."""
    return min([s.step for rank, s in meeting.items() if rank not in newcomers] or [s.step for s in meeting.values()])


def _apart(steps: Mapping[int, Sequence[Step]]) -> list[dict[int, Step]]:
    """Return steps of equal number; in order if few are known of all ranks (of long records only ends were read)."""
    shortest = min((len(rank_steps) for rank_steps in steps.values()), default=0)
    by_number = side_by_side(steps)
    return list((by_number if 2 * len(by_number) >= shortest else in_order(steps)).values())


def _longer(meeting: Mapping[int, Step]) -> dict[int, float]:
    shortest = min(busy(step) for step in meeting.values())
    return {rank: busy(step) - shortest for rank, step in meeting.items()}


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


def _late(ranks: list[Lateness]) -> list[Lateness]:
    """Select the ranks that are last beyond chance, and usually late by an amount that matters."""
    others = [rank.median for rank in ranks if not rank.is_often_last] or [min(rank.median for rank in ranks)]
    least = statistics.median(others) + _matters(statistics.fmean(rank.step_mean for rank in ranks))
    slow = [rank for rank in ranks if rank.is_often_last and rank.median > least]
    return sorted(slow, key=lambda rank: (-rank.last_share, -rank.median, rank.rank))


def _slower(ranks: list[Lateness], steps: Mapping[int, Sequence[Step]]) -> list[Lateness]:
    """Select the ranks nearly always longer at work than the others usually are, by a sign test."""
    slow = []
    for rank in ranks:
        usual = statistics.median(other.busy_median for other in ranks if other is not rank)
        longer = sum(busy(step) > usual for step in steps[rank.rank])
        chance = chance_of_at_least(longer, len(steps[rank.rank]), 0.5)
        if rank.busy_median > usual + _matters(usual) and chance < SURPRISE / len(ranks):
            slow.append(rank)
    return sorted(slow, key=lambda rank: (-rank.busy_median, rank.rank))


def _heat(
    firsts: Sequence[int], seconds: Sequence[Mapping[int, float]], ranks: Iterable[int]
) -> tuple[tuple[int, ...], tuple[tuple[float | None, ...], ...]]:
    width = -(-len(seconds) // COLUMNS)
    parts = [seconds[begin : begin + width] for begin in range(0, len(seconds), width)]
    # Ranks that come later count their steps from 1 again; columns are in order of time all the same.
    columns = tuple(accumulate(firsts[::width], max))
    return columns, tuple(tuple(_mean(part, rank) for part in parts) for rank in ranks)


def _mean(late: Iterable[Mapping[int, float]], rank: int) -> float | None:
    delays = [meeting[rank] for meeting in late if rank in meeting]
    return round(statistics.fmean(delays), 6) if delays else None


def waiting_in_step(steps: Mapping[int, Sequence[Step]]) -> float | None:
    """Return the share of the time that would have been waiting for others if all had begun each step together.

    Of the steps of equal number the longest work counts: workers would have waited for the rest of it. Added to it
    is the time of each worker after its arrival, other than `wait`. Exchanges are taken to cost nothing, and workers to
    be as fast as they were, although those that wait leave a shared machine to the others. None for one worker.
    """
    waited = total = 0.0
    for meeting in side_by_side(steps).values():
        longest = max(busy(step) for step in meeting.values())
        for step in meeting.values():
            waited += longest - busy(step)
            total += longest + max(0.0, step.end - step.arrive - step.wait)
    return waited / total if total > 0.0 else None


def slow_ranks_in_words(skew: Skew) -> str:
    """Name the slow ranks, and how slow they are, without a full stop.

    If all workers wait for each other, `rank 3 arrived last in 97% of the steps, 182 ms after the first`; otherwise
    `rank 2 needs 139 ms per step, 3.6x the others`. Times are medians.
    """
    slow, is_single = skew.slow, len(skew.slow) == 1
    if not slow:
        return "no rank is significantly slower than the others"
    ranks = ranks_named([rank.rank for rank in slow], len(skew.ranks))
    if skew.is_together:
        share = share_in_words(max(rank.last_share for rank in slow))
        late = seconds_in_words(statistics.median(rank.median for rank in slow))
        arrived = "arrived last in" if is_single else "arrived last, or among the last, in up to"
        return f"{ranks} {arrived} {share} of the steps, {late} after the first"
    seconds = statistics.median(rank.busy_median for rank in slow)
    ratio = seconds / statistics.median(rank.busy_median for rank in skew.others)
    return f"{ranks} {'needs' if is_single else 'need'} {seconds_in_words(seconds)} per step, {ratio:.1f}x the others"
