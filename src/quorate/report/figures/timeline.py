"""Some typical steps of a run, side by side: which rank did what when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quorate.report.figures.time_use import ACTIVITIES, Spent
from quorate.report.reading.rounds import Merged
from quorate.report.schema import Lane, Mark

STEPS = 20
ROUNDS = 40
"""Where there are rounds: no more steps than have about so many of them, so that each can be seen."""
LEAST_STEPS = 3
LANES = 16
"""Ranks shown, at most."""
SHORTEST = 1e-6
"""Spans below this, the clock's last digit, are left out."""

_ORDER = ("data", "pace", "delay", "compute", "encode", "waiting", "communication", "decode", "update", "other")
"""As they follow each other within a step."""
_PLACES = [(name, ACTIVITIES.index(name)) for name in _ORDER]
_DIGITS = 6


def timeline_of(
    steps: Mapping[int, Sequence[Spent]], slow_rank: int | None, merged: Sequence[Merged] = ()
) -> tuple[tuple[Lane, ...], tuple[Mark, ...]]:
    """About `STEPS` steps around which all is as usual, of the first ranks and the slow one, and the rounds in them.

    Nothing without steps.

    Of all windows of consecutive steps of the lowest rank, the one that takes the median time. Within a step the order
    of what was done is known, its moments are not: parts are laid end to end.
    """
    shown = sorted(steps)[:LANES]
    if slow_rank is not None and slow_rank in steps and slow_rank not in shown:
        shown = [*shown[: LANES - 1], slow_rank]
    if not shown:
        return (), ()
    lowest = steps[shown[0]]
    begin, end = _typical(lowest, _width(lowest, merged))
    lanes = [Lane(rank=rank, spans=_spans(steps[rank], begin, end)) for rank in shown]
    there = tuple(lane for lane in lanes if lane.spans)  # others had died by then, or had not joined yet
    return there or tuple(lanes), tuple(_mark(one, begin) for one in merged if begin <= one.formed <= end)


def _width(steps: Sequence[Spent], merged: Sequence[Merged]) -> int:
    """How many steps to show."""
    since, until = steps[0].step.begin, steps[-1].step.end
    rounds = sum(since <= one.formed <= until for one in merged)
    fitting = STEPS if rounds * STEPS <= ROUNDS * len(steps) else ROUNDS * len(steps) // rounds
    return min(len(steps), max(LEAST_STEPS, fitting))


def _mark(one: Merged, begin: float) -> Mark:
    """Its gradients in the order in which they came."""
    given = sorted((round(given.step.arrive - begin, _DIGITS), given.rank, given.staleness) for given in one.given)
    return Mark(
        number=one.round.number,
        time=round(one.formed - begin, _DIGITS),
        given=tuple((rank, time, staleness) for time, rank, staleness in given),
    )


def _typical(steps: Sequence[Spent], width: int) -> tuple[float, float]:
    """Begin and end of the window of median length."""
    windows = sorted(
        (last.step.end - first.step.begin, first.step.begin, last.step.end)
        for first, last in zip(steps, steps[width - 1 :], strict=False)
    )
    _, begin, end = windows[(len(windows) - 1) // 2]
    return begin, end


def _spans(steps: Sequence[Spent], begin: float, end: float) -> tuple[tuple[str, float, float], ...]:
    """What lies within the window, in seconds since it begins."""
    spans = []
    for one in steps:
        if one.step.end <= begin or one.step.begin >= end:
            continue
        now = one.step.begin
        for name, place in _PLACES:
            since, now = now, now + one.by[place]
            low, high = max(since, begin), min(now, end)
            if high - low >= SHORTEST:
                spans.append((name, round(low - begin, _DIGITS), round(high - begin, _DIGITS)))
    return tuple(spans)
