"""Ratios to a baseline: a mean with its interval and the value of each seed, one side below the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale
from quorate.report.schema import Estimate

_ROW = 34.0
_STEPS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0, 1000.0)
"""Ratios to which an axis reaches, up and down."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A mean above 0, its interval if there is one, and the value of each seed."""

    name: str
    look: int
    estimate: Estimate
    words: str


def ratio_chart(rows: Sequence[Ratio], *, title: str, width: float, label: str) -> Markup:
    """Draw a line for each interval, a mark for the mean, a stroke for each seed; the line at 1× is the baseline."""
    narrow = width < drawing.NARROW
    tall = _ROW + (18.0 if narrow else 0.0)
    longest = max(drawing.text_width(row.name, 13.0) for row in rows)
    named = 0.0 if narrow else min(width * 0.36, longest + 12.0)
    right = width - (10.0 if narrow else 150.0)
    top = 24.0
    foot = top + tall * len(rows)
    x = _scale(rows, named + 10.0, right)
    parts = [drawing.text(0, 12, title, class_="axis-title"), _axis(x, top, foot)]
    for place, row in enumerate(rows):
        y = top + tall * place + (tall - 12.0 if narrow else tall / 2.0)
        parts.append(_ratio_row(row, x, y))
        if narrow:
            parts.append(drawing.text(0, y - 15, drawing.shortened(row.name, width * 0.5), class_="name halo"))
            parts.append(drawing.text(width, y - 15, row.words, class_="small halo", anchor="end"))
        else:
            parts.append(drawing.text(0, y + 4, drawing.shortened(row.name, named, 13), class_="name"))
            parts.append(drawing.text(width, y + 4, row.words, class_="small", anchor="end"))
    return drawing.svg(width, foot + 40.0, *parts, label=label)


def _scale(rows: Sequence[Ratio], begin: float, end: float) -> Scale:
    """Return a scale from 1 as far up and down as the rows need, and a little to the other side."""
    values = [
        value
        for row in rows
        for value in (row.estimate.mean, row.estimate.low, row.estimate.high, *row.estimate.values)
        if value is not None and value > 0
    ]
    up = next((step for step in _STEPS if step >= max(values)), max(values))
    down = next((step for step in _STEPS if step >= 1.0 / min(values)), 1.0 / min(values))
    return Scale(1.0 / max(down, up**0.2), max(up, down**0.2), begin, end, is_log=True)


def _axis(x: Scale, top: float, foot: float) -> Markup:
    parts = []
    for value in _ticks(x.low, x.high):
        kind = "same" if value == 1.0 else "grid"
        parts.append(drawing.line(x(value), top, x(value), foot, class_=kind))
        parts.append(drawing.text(x(value), foot + 16, f"{value:g}×", class_="tick", anchor="middle"))
    parts.append(drawing.line(x.begin, foot, x.end, foot, class_="axis"))
    parts.append(drawing.text(x(1.0), foot + 32, "as the baseline", class_="axis-title", anchor="middle"))
    return joined(parts)


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, and at most three round ratios on either side, far enough apart."""
    wide = math.log(high / low)
    ticks = [1.0]
    for direction in (1, -1):
        last = 0.0
        for step in _STEPS:
            value = round(step**direction, 3)
            if low * 0.999 <= value <= high * 1.001 and abs(math.log(step)) - last >= wide * 0.13:
                ticks.append(value)
                last = abs(math.log(step))
    return sorted(ticks)


def _ratio_row(row: Ratio, x: Scale, y: float) -> Markup:
    seeds = [
        drawing.line(x(value), y - 8, x(value), y + 8, class_="stroke") for value in row.estimate.values if value > 0.0
    ]
    interval: list[str] = []
    if row.estimate.low is not None and row.estimate.high is not None:
        interval = [drawing.line(x(row.estimate.low), y, x(row.estimate.high), y, class_="range")]
    mean = drawing.marker(x(row.estimate.mean), y, row.look, 5.0)
    return drawing.group(
        element("title", f"{row.name}: {row.words}"), *seeds, *interval, mean, class_=drawing.colour_of(row.look)
    )
