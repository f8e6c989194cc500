"""The rule that decides a tuning: the default stays unless a paired interval is above it; pure.

A tuner that takes the best of several noisy times mostly takes the luckiest one. With 7 % noise, four tunings in five
then end slower than a default that is the best. So times of the default and of a candidate are taken in pairs, on steps
one after the other. A candidate counts as faster where the whole interval of its mean ratio says so. With k candidates
each interval has the confidence 1 - 0.05 / k (Bonferroni), so that one in twenty tunings at most takes one by chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from quorate.core.intervals import CONFIDENCE, LEAST_VALUES, Interval, ratio_interval

Pair = tuple[float, float]
"""Seconds of a step with the default, and of the next one with the candidate; both above 0."""


def speed_up(pairs: Sequence[Pair], candidates: int = 1) -> Interval:
    """Return how many times as fast as the default a candidate is, of so many that are compared, with its interval."""
    return ratio_interval([default / own for default, own in pairs], 1 - (1 - CONFIDENCE) / candidates)


def median_speed_up(pairs: Sequence[Pair]) -> float:
    """Return the median ratio of the default's seconds to those of the candidate; 0 without pairs."""
    return statistics.median(default / own for default, own in pairs) if pairs else 0.0


def fastest(trials: Mapping[int, Sequence[Pair]]) -> int | None:
    """Return the candidate that takes the place of the default: of those above it, the one with the highest lower end.

    Args:
        trials: By number of each candidate, its pairs. They are none of those by which the candidates were chosen.

    Returns:
        The number of the candidate; None: the default stays.
    """
    intervals = {number: speed_up(pairs, len(trials)) for number, pairs in trials.items() if len(pairs) >= LEAST_VALUES}
    above = {number: interval.low for number, interval in intervals.items() if (interval.low or 0.0) > 1.0}
    return max(above, key=lambda number: above[number] or 0.0, default=None)


def left_band(before: float, now: float, factor: float) -> bool:
    """Return whether a measured quantity is `factor` times as large as `before`, or less than its inverse."""
    return abs(math.log(max(now, 1e-12) / max(before, 1e-12))) > math.log(factor)
