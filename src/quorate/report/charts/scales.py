"""Scales from quantities to places on the page: units and the round numbers on axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["seconds", "bytes", "count", "plain"]

_UNITS: dict[Kind, tuple[tuple[str, float, float], ...]] = {
    "seconds": (
        ("µs", 1e-6, 0.0),
        ("ms", 1e-3, 1e-3),
        ("s", 1.0, 1.0),
        ("min", 60.0, 300.0),
        ("h", 3600.0, 3 * 3600.0),
    ),
    "bytes": (("bytes", 1.0, 0.0), ("kB", 1e3, 2e3), ("MB", 1e6, 2e6), ("GB", 1e9, 2e9), ("TB", 1e12, 2e12)),
    "count": (("", 1.0, 0.0), ("thousands", 1e3, 2e4), ("millions", 1e6, 2e6), ("billions", 1e9, 2e9)),
    "plain": (("", 1.0, 0.0),),
}
"""Name, size, and the greatest value of an axis from which on the unit is used."""
LOG_FROM = 50.0
"""Values above 0 that differ by this factor stand on a logarithmic axis where one is allowed."""


@dataclass(frozen=True)
class Unit:
    """The unit of the numbers of an axis."""

    name: str
    size: float


def unit_for(kind: Kind, greatest: float) -> Unit:
    """Return the unit in which `greatest` is a handy number."""
    return next(Unit(name, size) for name, size, least in reversed(_UNITS[kind]) if greatest >= least)


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values, `low` to `high`, to places, `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    unit: Unit = Unit("", 1.0)
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of `value`; values outside of the scale are put on its end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + (self.end - self.begin) * share

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Return round values on the scale, and their text in its unit."""
        low, high = self.low / self.unit.size, self.high / self.unit.size
        values = _powers(low, high, most) if self.is_log else _rounds(low, high, most)
        step = 0.0 if self.is_log or len(values) < 2 else values[1] - values[0]
        return [(value * self.unit.size, _written(value, step)) for value in values]


def scale_of(
    values: Iterable[float],
    begin: float,
    end: float,
    *,
    kind: Kind = "plain",
    from_zero: bool = False,
    may_be_log: bool = False,
    round_ends: bool = False,
) -> Scale:
    """Return a scale that holds all `values`, of which the finite ones count; there may be none, or only equal ones.

    `round_ends` widens it to the next round numbers. Bars need `from_zero`.
    """
    numbers = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(numbers), max(numbers)
    unit = unit_for(kind, max(abs(low), abs(high)))
    if may_be_log and low > 0.0 and high / low >= LOG_FROM:
        return Scale(10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high)), begin, end, unit, True)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        middle = abs(high) or unit.size
        low, high = (0.0, middle) if from_zero else (low - middle / 2.0, high + middle / 2.0)
    if round_ends:
        step = _step((high - low) / unit.size, 5) * unit.size
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(low, high, begin, end, unit)


def _step(width: float, most: int) -> float:
    """Return the least of 1, 2, 5, 10, 20 … that divides `width` into at most `most` parts."""
    rough = width / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1.0 - 1e-9))


def _rounds(low: float, high: float, most: int) -> list[float]:
    step = _step(high - low, most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _powers(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    stride = max(1, math.ceil((last - first + 1) / most))
    return [10.0**power for power in range(first, last + 1, stride)]


def _written(value: float, step: float) -> str:
    if abs(value) < step * 1e-6:
        return "0"
    if step:
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        if digits <= 6 and abs(value) < 1e7:
            return f"{value:,.{digits}f}"
    return f"{value:g}"
