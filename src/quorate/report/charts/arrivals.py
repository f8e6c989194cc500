"""The ranks that are late at the meeting point: bars by rank, and beside them a heat map of rank by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined, number
from quorate.report.charts.scales import scale_of
from quorate.report.wording import seconds_alike, seconds_in_words

ROWS = 64
"""The most rows: of more ranks, several share one."""
COLUMNS = 120
"""The most columns of the heat map."""
LEVELS = 6
"""Shades of the heat map above "nothing"."""
_FINE = 16
"""The number of rows from which on they are thin, and only some are labelled."""
Heat = Sequence[Sequence[float | None]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A rank, or several consecutive ones; times are in seconds."""

    name: str
    mean: float
    p95: float
    note: str = ""
    is_slow: bool = False


@dataclass(frozen=True, kw_only=True)
class ArrivalRows:
    """All rows of one side, and a heat map with as many rows."""

    rows: Sequence[Row]
    heat: Heat
    steps: Sequence[int]
    """The first step of each column."""
    longest: float
    """The lateness at which the axis of the bars ends, seconds."""
    darkest: float
    """The lateness of the darkest shade, seconds."""
    is_together: bool = True
    """Whether ranks met; else "late" is how much longer than the fastest they were at work."""


def arrival_chart(lateness: ArrivalRows, *, title: str, width: float, label: str) -> Markup:
    """Draw the bars at the left and the heat map at the right, row by row; one below the other on a narrow page."""
    tall = 30.0 if len(lateness.rows) <= _FINE else 9.0
    names = min(110.0, max(drawing.text_width(row.name) for row in lateness.rows) + 10.0)
    narrow = width < drawing.NARROW
    has_heat = bool(lateness.steps) and any(cell is not None for row in lateness.heat for cell in row)
    right = width if narrow or not has_heat else width * 0.42
    top = 26.0
    foot = top + tall * len(lateness.rows)
    parts = [
        drawing.text(0, 12, title, class_="axis-title"),
        _bars(lateness, names, right, top, tall),
    ]
    height = foot + 42.0
    if has_heat:
        left, above = (names, height + 34.0) if narrow else (right + (30.0 if tall > 20 else 20.0), top)
        measure = "lateness" if lateness.is_together else "longer per step than the fastest"
        parts.append(drawing.text(left, above - 14, f"rank by step: {measure}", class_="axis-title"))
        if narrow:
            parts.append(_names(lateness.rows, names, above, tall))
        parts.append(_cells(lateness, left, width - 1.0, above, tall))
        below = above + tall * len(lateness.rows)
        parts.append(_steps(lateness.steps, left, width - 1.0, below))
        parts.append(_shades(lateness, left, width, below + 30.0))
        height = below + 76.0
    return drawing.svg(width, height, *parts, label=label)


def coarser(heat: Heat, rows: int, columns: int) -> list[list[float | None]]:
    """Return at most `rows` rows and `columns` columns: the latest of ranks that share a row, the mean of columns.

    None stands for unknown values. All rows are equally long.
    """
    length = max((len(row) for row in heat), default=0)
    tall, wide = -(-len(heat) // rows) or 1, -(-length // columns) or 1
    fewer = [[_mean(row[at : at + wide]) for at in range(0, length, wide)] for row in heat]
    return [
        [_latest(column) for column in zip(*fewer[at : at + tall], strict=True)] for at in range(0, len(heat), tall)
    ]


def _mean(cells: Sequence[float | None]) -> float | None:
    values = [cell for cell in cells if cell is not None]
    return sum(values) / len(values) if values else None


def _latest(cells: Sequence[float | None]) -> float | None:
    return max((cell for cell in cells if cell is not None), default=None)


def _bars(lateness: ArrivalRows, left: float, right: float, top: float, tall: float) -> Markup:
    rows = lateness.rows
    room = 64.0 if tall > 20 else 8.0
    foot = top + tall * len(rows)
    values = (lateness.longest, *(row.mean for row in rows), *(row.p95 for row in rows))
    x = scale_of(values, left, right - room, kind="seconds", from_zero=True)
    parts = [drawing.axis_below(x, foot, top, "", most=4), _names(rows, left, top, tall)]
    thick = tall * 0.56
    seconds = seconds_alike(row.mean for row in rows)
    areas: dict[str, list[str]] = {}
    whiskers = []
    for place, row in enumerate(rows):
        y = top + tall * (place + 0.5)
        mean, p95 = max(left + 1.0, x(row.mean)), x(row.p95)
        areas.setdefault("late slow" if row.is_slow else "late", []).append(
            f"M{number(left)} {number(y - thick / 2.0)}H{number(mean)}v{number(thick)}H{number(left)}z"
        )
        whiskers.append(f"M{number(mean)} {number(y)}H{number(p95)}m0 {number(-thick / 3.0)}v{number(thick / 1.5)}")
        if tall > 20:
            hint = f"{row.name}: {seconds_in_words(row.mean)} in the mean, p95 {seconds_in_words(row.p95)} {row.note}"
            content = element("title", hint.strip()), seconds(row.mean)
            parts.append(element("text", *content, x=max(p95, mean) + 6, y=y + 4, class_="small halo"))
    parts += [element("path", d="".join(pieces), class_=kind) for kind, pieces in areas.items()]
    parts.append(element("path", d="".join(whiskers), class_="whisker"))
    return joined(parts)


def _names(rows: Sequence[Row], left: float, top: float, tall: float) -> Markup:
    parts = []
    for place, row in enumerate(rows):
        near_slow = any(other.is_slow for other in rows[max(0, place - 1) : place + 2])
        if tall > 20 or row.is_slow or (place % 8 == 0 and not near_slow):
            y = top + tall * (place + 0.5) + 4
            parts.append(
                drawing.text(left - 8, y, row.name, class_="row-name slow" if row.is_slow else "row-name", anchor="end")
            )
    return joined(parts)


def _cells(lateness: ArrivalRows, left: float, right: float, top: float, tall: float) -> Markup:
    """Draw one path of strokes for each shade, in units of cells; neighbours of one shade in a row are one stroke."""
    columns = max(len(row) for row in lateness.heat)
    pieces: dict[str, list[str]] = {}
    ends: dict[str, tuple[int, int]] = {}
    for place, row in enumerate(lateness.heat):
        shades = [_shade(cell, lateness.darkest) for cell in row]
        begin = 0
        for at in range(1, len(shades) + 1):
            if at == len(shades) or shades[at] != shades[begin]:
                x, y = ends.get(shades[begin], (0, 0))
                pieces.setdefault(shades[begin], ["M0 .5"]).append(f"m{begin - x} {place - y}h{at - begin}")
                ends[shades[begin]] = (at, place)
                begin = at
    scale = f"translate({number(left)} {number(top)}) scale({(right - left) / columns:.4f} {number(tall)})"
    strokes = (element("path", d="".join(parts), class_=shade) for shade, parts in sorted(pieces.items()))
    return element("g", *strokes, class_="heat", transform=scale)


def _shade(cell: float | None, greatest: float) -> str:
    if cell is None:
        return "h-none"
    if greatest <= 0.0:
        return "h0"
    return f"h{min(LEVELS, round(LEVELS * cell / greatest))}"


def _steps(steps: Sequence[int], left: float, right: float, y: float) -> Markup:
    wide = (right - left) / len(steps)
    most = max(1, int((right - left) // 64))
    stride = -(-len(steps) // most)
    parts = []
    for place in range(0, len(steps), stride):
        x = left + place * wide
        words = f"step {steps[place]:,}" if place == 0 else f"{steps[place]:,}"
        parts.append(drawing.text(x, y + 16, words, class_="tick"))
        parts.append(drawing.line(x, y, x, y + 4, class_="axis"))
    return joined(parts)


def _shades(lateness: ArrivalRows, left: float, right: float, y: float) -> Markup:
    wide = min(34.0, (right - left) * 0.45 / (LEVELS + 1))
    parts = [drawing.bar(left + wide * level, y, wide, 12, class_=f"h{level}") for level in range(LEVELS + 1)]
    least, most = ("first to arrive", "late") if lateness.is_together else ("the fastest", "longer")
    parts.append(drawing.text(left, y + 27, least, class_="small"))
    words = f"{seconds_in_words(lateness.darkest)} {most}, or more"
    parts.append(drawing.text(left + wide * (LEVELS + 1) + 6, y + 10, words, class_="small"))
    return joined(parts)
