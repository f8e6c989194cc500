"""The lengths of steps: one histogram below the other, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale, scale_of
from quorate.report.wording import seconds_alike

_TALL = 54.0
_ROW = 92.0
_LEFT = 50.0
"""The room for the shares at the left."""
_MARKS = (("p50", ""), ("p95", "6 3"), ("p99", "2 2"))


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """The steps of one side: counts between edges (one more than counts), and three percentiles."""

    name: str
    look: int
    edges: Sequence[float]
    counts: Sequence[int]
    percentiles: Sequence[float]
    """The 50th, 95th and 99th percentile, in seconds."""


def histograms(rows: Sequence[Histogram], *, title: str, width: float, label: str) -> Markup:
    """Draw bars as shares of a side's steps, on one axis from 0 for all sides; lines mark p50, p95 and p99."""
    narrow = width < drawing.NARROW
    top = 4.0
    bottom = top + _ROW * len(rows)
    edges = [edge for row in rows for edge in (*row.edges, *row.percentiles)]
    x = scale_of(edges, _LEFT, width - 8.0, kind="seconds", from_zero=min(edges) < 0.4 * max(edges))
    shares = [count / max(1, sum(row.counts)) for row in rows for count in row.counts]
    seconds = seconds_alike(percentile for row in rows for percentile in row.percentiles)
    parts = [drawing.axis_below(x, bottom, top + 18, title, most=4 if narrow else 8)]
    for place, row in enumerate(rows):
        foot = top + _ROW * (place + 1)
        y = scale_of(shares, foot, foot - _TALL, from_zero=True, round_ends=True)
        parts.append(_heights(y, x))
        parts.append(_bars(row, x, y))
        parts.append(_marks(row, x, foot))
        parts.append(
            _heading(row, foot - _ROW + 18, width, [seconds(percentile) for percentile in row.percentiles], narrow)
        )
    return drawing.svg(width, bottom + 42.0, *parts, label=label)


def _heights(y: Scale, x: Scale) -> Markup:
    places = 1 if y.high < 0.1 else 0
    parts = []
    for share in (0.0, y.high / 2.0, y.high):
        at = y(share)
        parts += [drawing.line(x.begin, at, x.end, at, class_="grid")] if share else []
        if share != y.high / 2.0:
            words = "0" if share == 0.0 else f"{share:.{places}%}"
            parts.append(drawing.text(x.begin - 14.0, at + 4.0, words, class_="tick", anchor="end"))
    return joined(parts)


def _bars(row: Histogram, x: Scale, y: Scale) -> Markup:
    total = max(1, sum(row.counts))
    strokes = []
    for low, high, count in zip(row.edges, row.edges[1:], row.counts, strict=False):
        if count:
            begin, end = x(low), x(high)
            strokes.append(
                f"M{begin:.1f} {y.begin:.1f}V{y(count / total):.1f}H{max(end, begin + 1):.1f}V{y.begin:.1f}Z"
            )
    line = drawing.line(x.begin, y.begin, x.end, y.begin, class_="axis")
    area = element("path", d="".join(strokes), class_="bins") if strokes else Markup()
    return drawing.group(element("title", row.name), area, line, class_=drawing.colour_of(row.look))


def _marks(row: Histogram, x: Scale, foot: float) -> Markup:
    parts: list[str] = []
    last = -100.0
    for (name, dashes), value in zip(_MARKS, row.percentiles, strict=True):
        at = x(value)
        parts.append(drawing.line(at, foot - _TALL - 2, at, foot, class_="percentile", dashes=dashes))
        if at - last >= 26.0:
            parts.append(drawing.text(at, foot - _TALL - 5, name, class_="mark-label halo", anchor="middle"))
            last = at
    return joined(parts)


def _heading(row: Histogram, y: float, width: float, figures: Sequence[str], narrow: bool) -> Markup:
    words = " / ".join(figures) if narrow else " · ".join(f"{n} {v}" for (n, _), v in zip(_MARKS, figures, strict=True))
    name = drawing.shortened(row.name, width - drawing.text_width(words) - 24, 13)
    parts = [drawing.text(0, y, name, class_="name halo"), drawing.text(width, y, words, class_="small", anchor="end")]
    return drawing.group(*parts, class_=drawing.colour_of(row.look))
