"""Some typical steps of a run, side by side: the activities of ranks over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quorate.report.figures.time_use import ACTIVITIES, Spent
from quorate.report.reading.rounds import Merged
from quorate.report.schema import Lane, Mark

STEPS = 20
ROUNDS = 40
"""About the most rounds in the steps shown, so that each can be seen."""
LEAST_STEPS = 3
LANES = 16
"""The most ranks shown."""
SHORTEST = 1e-6
"""Spans below this, the clock's last digit, are left out."""

_ORDER = ("data", "pace", "delay", "compute", "encode", "waiting", "communication", "decode", "update", "other")
"""The order within a step."""
_PLACES = [(name, ACTIVITIES.index(name)) for name in _ORDER]
_DIGITS = 6


def timeline_of(
    steps: Mapping[int, Sequence[Spent]], slow_rank: int | None, merged: Sequence[Merged] = ()
) -> tuple[tuple[Lane, ...], tuple[Mark, ...]]:
    """Return about `STEPS` typical steps of the first ranks and the slow one, and the rounds in them; none without
    steps.

    Of all windows of consecutive steps of the lowest rank, it is the one that takes the median time. Within a step the
    order of activities is known, their times are not: parts are laid end to end.
    """
    shown = sorted(steps)[:LANES]
    if slow_rank is not None and slow_rank in steps and slow_rank not in shown:
        shown = [*shown[: LANES - 1], slow_rank]
    if not shown:
        return (), ()
    lowest = steps[shown[0]]
    begin, end = _typical(lowest, _width(lowest, merged))
    lanes = [Lane(rank=rank, spans=_spans(steps[rank], begin, end)) for rank in shown]
    present = tuple(lane for lane in lanes if lane.spans)  # others had died by then, or had not joined yet
    return present or tuple(lanes), tuple(_mark(update, begin) for update in merged if begin <= update.formed <= end)


def _width(steps: Sequence[Spent], merged: Sequence[Merged]) -> int:
    since, until = steps[0].step.begin, steps[-1].step.end
    rounds = sum(since <= update.formed <= until for update in merged)
    fitting = STEPS if rounds * STEPS <= ROUNDS * len(steps) else ROUNDS * len(steps) // rounds
    return min(len(steps), max(LEAST_STEPS, fitting))


def _mark(update: Merged, begin: float) -> Mark:
    gradient = sorted(
        (round(gradient.step.arrive - begin, _DIGITS), gradient.rank, gradient.staleness)
        for gradient in update.gradients
    )
    return Mark(
        number=update.round.number,
        time=round(update.formed - begin, _DIGITS),
        given=tuple((rank, time, staleness) for time, rank, staleness in gradient),
    )


def _typical(steps: Sequence[Spent], width: int) -> tuple[float, float]:
    windows = sorted(
        (last.step.end - first.step.begin, first.step.begin, last.step.end)
        for first, last in zip(steps, steps[width - 1 :], strict=False)
    )
    _, begin, end = windows[(len(windows) - 1) // 2]
    return begin, end


def _spans(steps: Sequence[Spent], begin: float, end: float) -> tuple[tuple[str, float, float], ...]:
    spans = []
    for times in steps:
        if times.step.end <= begin or times.step.begin >= end:
            continue
        now = times.step.begin
        for name, place in _PLACES:
            since, now = now, now + times.by[place]
            low, high = max(since, begin), min(now, end)
            if high - low >= SHORTEST:
                spans.append((name, round(low - begin, _DIGITS), round(high - begin, _DIGITS)))
    return tuple(spans)
