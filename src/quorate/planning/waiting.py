"""The additional seconds of workers that all wait for each other, from how the steps of one have varied. Pure.

Seconds of n workers are assumed to vary independently, like timed steps, of which a share F(x) takes at most x. The
slowest of n takes at most x with the probability F(x)^n, so in half of all steps at most x where F(x) = 2^(-1/n). No
step is assumed to be longer than the longest timed one, so that for many workers it is a lower bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_AROUND = 2
"""Steps before and after one with which it is compared."""


def spread_of(runs: Sequence[Sequence[float]]) -> list[float]:
    """Return the seconds of each step over the median of those around it in all runs, from the shortest on.

    The runs are side by side: workers do not wait for each other because all are slow for a while.
    """
    ratios = []
    for run in runs:
        for place, seconds in enumerate(run):
            around = [x for other in runs for x in other[max(0, place - _AROUND) : place + _AROUND + 1]]
            usual = statistics.median(around)
            ratios += [seconds / usual] if usual > 0 else []
    return sorted(ratios)


def slowest(spread: Sequence[float], workers: int) -> float:
    """Return the factor by which the slowest of so many workers exceeds the usual seconds, in half of all steps.

    `spread` is the result of `spread_of`; the factor is 1 without any.
    """
    if not spread or workers < 2:
        return 1.0
    place = 2 ** (-1 / workers) * (len(spread) - 1)
    below = math.floor(place)
    above = min(below + 1, len(spread) - 1)
    return spread[below] + (place - below) * (spread[above] - spread[below])
