"""Conclusions from a few runs: intervals of means and of ratios, and verdicts on differences.

Runs of one seed are a pair: they share data and starting point, so differences and ratios are taken pair by pair.
Ratios are averaged as logarithms: 2 and 1/2 make 1. Intervals are Student's (1908), 95% by default.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from quorate.core.intervals import mean_interval, ratio_interval

Difference = Literal["better", "worse", "no significant difference"]
NONE: Difference = "no significant difference"
RELEVANT = 0.01
"""The smallest difference that counts by default, as a share of the baseline's value."""


def ratio_verdict(
    pairs: Sequence[tuple[float, float]], *, higher_is_better: bool, relevant: float = RELEVANT
) -> Difference:
    """Compare pairs (this one, the baseline) above 0.

    A difference is significant if the interval of the mean ratio excludes 1, and that ratio is at least `relevant` off.
    """
    interval = ratio_interval([own / other for own, other in pairs])
    if interval.low is None or interval.high is None or abs(interval.mean - 1.0) < relevant:
        return NONE
    return _verdict(interval.low > 1.0, interval.high < 1.0, higher_is_better)


def difference_verdict(
    pairs: Sequence[tuple[float, float]], *, higher_is_better: bool, relevant: float = RELEVANT
) -> Difference:
    """Compare pairs (this one, the baseline).

    A difference is significant if the interval of the mean difference excludes 0, and that mean is at least `relevant`
    times the baseline's.
    """
    interval = mean_interval([own - other for own, other in pairs])
    usual = statistics.fmean(abs(other) for _, other in pairs)
    if interval.low is None or interval.high is None or abs(interval.mean) < relevant * usual:
        return NONE
    return _verdict(interval.low > 0.0, interval.high < 0.0, higher_is_better)


def _verdict(is_above: bool, is_below: bool, higher_is_better: bool) -> Difference:
    if not is_above and not is_below:
        return NONE
    return "better" if is_above == higher_is_better else "worse"


def chance_of_at_least(hits: int, tries: int, chance: float) -> float:
    """Return P(X ≥ hits) of a binomial X: the chance of coming last so often. Costs time in proportion to `tries`."""
    if hits <= 0 or chance >= 1.0:
        return 1.0
    if chance <= 0.0:
        return 0.0
    yes, no = math.log(chance), math.log1p(-chance)
    whole = math.lgamma(tries + 1)
    logs = (
        whole - math.lgamma(k + 1) - math.lgamma(tries - k + 1) + k * yes + (tries - k) * no
        for k in range(hits, tries + 1)
    )
    return min(1.0, math.fsum(math.exp(logarithm) for logarithm in logs))


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the sorted `values`, at least one, lie; interpolated linearly."""
    place = share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)
