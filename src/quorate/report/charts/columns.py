"""Counts of numbers: columns over whole numbers, one side below the other, on one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined, number
from quorate.report.charts.scales import Scale
from quorate.report.wording import Words, shares_alike

_TALL = 62.0
_ROW = 130.0
_WIDEST = 96.0
"""The greatest width of a column with the room beside it."""
_LABELLED = 31.0
"""The least width of a column, with the room beside it, that has a label above it."""
_NARROWEST = 5.0


@dataclass(frozen=True, kw_only=True)
class Columns:
    """One side: the values of the numbers from `first` on, in any unit; and words for the right end of its row."""

    name: str
    look: int
    counts: Sequence[float]
    note: str = ""
    level: float | None = None
    """A share that a dashed line marks, such as an equal one."""


def column_chart(rows: Sequence[Columns], *, title: str, width: float, label: str, first: int = 0) -> Markup:
    """Draw columns as shares of a side's total, from 0 and on one scale for all sides; all begin at the number `first`.

    If there are more numbers than columns fit, neighbours share one.
    """
    length = max(len(row.counts) for row in rows)
    together = max(1, math.ceil(length * _NARROWEST / (width - 16.0)))
    shares = [_shares([*row.counts, *([0.0] * (length - len(row.counts)))], together) for row in rows]
    columns = -(-length // together)
    wide = min(_WIDEST, (width - 16.0) / columns)
    levels = [row.level * together for row in rows if row.level is not None]
    greatest = max([share for row_shares in shares for share in row_shares] + levels) or 1.0
    words = shares_alike(share for row_shares in shares for share in row_shares)
    parts = []
    for place, (row, row_shares) in enumerate(zip(rows, shares, strict=True)):
        foot = _ROW * (place + 1) - 22.0
        parts.append(_heading(row, foot - _ROW + 40.0, width))
        parts.append(_row(row, row_shares, together, Scale(0.0, greatest, foot, foot - _TALL), wide, words))
        parts.append(_numbers(columns, together, length, first, foot, wide))
    bottom = _ROW * len(rows) + 12.0
    below = title if together == 1 else f"{title}, {together} to a column"
    parts.append(drawing.text(8.0, bottom, below, class_="axis-title"))
    return drawing.svg(width, bottom + 8.0, *parts, label=label)


def _shares(counts: Sequence[float], together: int) -> list[float]:
    total = math.fsum(counts) or 1.0
    return [math.fsum(counts[at : at + together]) / total for at in range(0, len(counts), together)]


def _heading(row: Columns, y: float, width: float) -> Markup:
    """Draw the name at the left, and the words at the right or, without room, below."""
    name = drawing.shortened(row.name, width, 13)
    right = drawing.text_width(name, 13) + drawing.text_width(row.note, 12) + 20.0 <= width
    note = (
        drawing.text(width, y, row.note, class_="small", anchor="end")
        if right
        else drawing.text(0, y + 15.0, drawing.shortened(row.note, width), class_="small")
    )
    return drawing.group(drawing.text(0, y, name, class_="name halo"), note, class_=drawing.colour_of(row.look))


def _row(row: Columns, shares: Sequence[float], together: int, y: Scale, wide: float, words: Words) -> Markup:
    """Draw all columns as one area, with labels above those that are not empty and have room for one."""
    thick = wide * (0.72 if wide > 12.0 else 0.86)
    strokes, labels = [], []
    for place, share in enumerate(shares):
        if share <= 0.0:
            continue
        middle = 8.0 + wide * (place + 0.5)
        top = min(y(share), y.begin - 1.0)
        strokes.append(
            f"M{number(middle - thick / 2)} {number(y.begin)}V{number(top)}h{number(thick)}V{number(y.begin)}Z"
        )
        if wide >= _LABELLED:
            labels.append(drawing.text(middle, top - 4.0, words(share), class_="mark-label halo", anchor="middle"))
    right = 8.0 + wide * len(shares)
    parts = [
        element("title", row.name),
        element("path", d="".join(strokes), class_="bins") if strokes else Markup(),
        drawing.line(8.0, y.begin, right, y.begin, class_="axis"),
    ]
    if row.level is not None:
        height = y(row.level * together)
        parts.append(drawing.line(8.0, height, right, height, class_="percentile", dashes="6 3"))
    return drawing.group(*parts, *labels, class_=drawing.colour_of(row.look))


def _numbers(columns: int, together: int, length: int, first: int, foot: float, wide: float) -> Markup:
    widest = drawing.text_width(_range(columns - 1, together, length, first), 12.0) + 8.0
    stride = math.ceil(widest / wide)
    return joined(
        drawing.text(
            8.0 + wide * (place + 0.5),
            foot + 15.0,
            _range(place, together, length, first),
            class_="tick",
            anchor="middle",
        )
        for place in range(0, columns, stride)
    )


def _range(place: int, together: int, length: int, first: int) -> str:
    low, high = first + place * together, first + min(length, (place + 1) * together) - 1
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
