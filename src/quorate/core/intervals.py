"""Intervals of means and of ratios: Student's (1908), 95% by default.

Ratios are averaged as logarithms: 2 and 1/2 make 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
LEAST_VALUES = 3
"""The number of values from which on a mean has an interval."""


@dataclass(frozen=True)
class Interval:
    """A mean and its interval; `low` and `high` are None for fewer than `LEAST_VALUES`."""

    mean: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of at least one value, with its interval: mean ± t(n − 1) s / √n.

    Of two values the interval would be 13 times as wide as their difference, and would say nothing more.
    """
    mean = statistics.fmean(values)
    if len(values) < LEAST_VALUES:
        return Interval(mean, None, None)
    half = t_quantile(len(values) - 1, confidence) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def ratio_interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the geometric mean of ratios above 0, at least one: the interval of the mean logarithm, exponentiated."""
    logs = mean_interval([math.log(ratio) for ratio in ratios], confidence)
    if logs.low is None or logs.high is None:
        return Interval(math.exp(logs.mean), None, None)
    return Interval(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high))


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
