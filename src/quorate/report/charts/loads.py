"""The loads of several workers or servers, as bars from 0 to all of the time, with words beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, joined
from quorate.report.charts.scales import Scale

_ROW = 36.0
_NAME = 28.0
_THICK = 11.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """One row; the rows of one side are consecutive."""

    name: str
    """The name of the side."""
    look: int
    row: str
    share: float | None
    """The busy share of the time; None if unknown."""
    words: str


def load_chart(rows: Sequence[Load], *, title: str, width: float, label: str) -> Markup:
    """Draw one scale for all sides, up to the greatest share, and to a tenth at least."""
    shares = [row.share for row in rows if row.share is not None]
    x = Scale(0.0, max([0.1, *shares]), 1.0, width - 12.0)
    parts, y = [], 0.0
    for place, row in enumerate(rows):
        if place == 0 or rows[place - 1].name != row.name:
            y += _NAME
            name = drawing.text(1, y - 6.0, drawing.shortened(row.name, width, 13), class_="name halo")
            parts.append(drawing.group(name, class_=drawing.colour_of(row.look)))
        words = drawing.shortened(f"{row.row}: {row.words}", width)
        parts.append(drawing.text(1, y + 12.0, words, class_="small"))
        if row.share is not None:
            area = drawing.bar(1, y + 17.0, max(1.0, x(row.share) - 1.0), _THICK, class_="bins", hint=words)
            parts.append(drawing.group(area, class_=drawing.colour_of(row.look)))
        y += _ROW if row.share is not None else _ROW - _THICK - 5.0
    if shares:
        parts.append(drawing.text(1, y + 10.0, f"{title}; the full width is {x.high:.0%}", class_="axis-title"))
    return drawing.svg(width, y + (18.0 if shares else 4.0), joined(parts), label=label)
