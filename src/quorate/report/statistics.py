"""Conclusions from a few runs: intervals of means and of ratios, and verdicts on differences.

Runs of one seed are a pair: they share data and starting point, so differences and ratios are taken pair by pair.
Ratios are averaged as logarithms: 2 and 1/2 make 1. Intervals are Student's (1908), 95% by default.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

Difference = Literal["better", "worse", "no significant difference"]
CONFIDENCE = 0.95
LEAST_VALUES = 3
"""The number of values from which on a mean has an interval."""
NONE: Difference = "no significant difference"
RELEVANT = 0.01
"""The smallest difference that counts by default, as a share of the baseline's value."""


@dataclass(frozen=True)
class Interval:
    """A mean and its interval; `low` and `high` are None for fewer than `LEAST_VALUES`."""

    mean: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of at least one value, with its interval: mean ± t(n − 1) s / √n.

    Of two values the interval would be 13 times as wide as their difference, and would say nothing more.
    """
    mean = statistics.fmean(values)
    if len(values) < LEAST_VALUES:
        return Interval(mean, None, None)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """Return the geometric mean of ratios above 0, at least one: the interval of the mean logarithm, exponentiated."""
    logs = mean_interval([math.log(ratio) for ratio in ratios])
    if logs.low is None or logs.high is None:
        return Interval(math.exp(logs.mean), None, None)
    return Interval(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high))


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


@cache
def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return the t with P(|T| ≤ t) = `confidence`, for `freedom` ≥ 1 degrees of freedom; by bisection, to 12 digits."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| ≤ t): the finite series in the angle θ = atan(t / √ν), for whole ν (Abramowitz and Stegun 26.7.3, 4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    is_odd = freedom % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for k in range(freedom // 2):
        total += term
        upper, lower = (2 * k + 2, 2 * k + 3) if is_odd else (2 * k + 1, 2 * k + 2)
        term *= square * upper / lower
    return 2.0 / math.pi * (angle + sine * total) if is_odd else sine * total


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
