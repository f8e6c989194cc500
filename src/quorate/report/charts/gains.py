"""The waiting beside its estimate in other conditions: two bars for each side, from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.report.charts import activities, drawing
from quorate.report.charts.markup import Markup, joined
from quorate.report.charts.scales import Scale
from quorate.report.wording import shares_alike

_ROW = 74.0
_THICK = 17.0


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One side; shares of the time."""

    name: str
    look: int
    was: float
    would_be: float


def gain_chart(rows: Sequence[Gain], *, was: str, would_be: str, width: float, label: str) -> Markup:
    """Draw bars on one scale: full ones, named `was`, and empty ones below them, named `would_be`."""
    greatest = max(max(row.was, row.would_be) for row in rows) or 1.0
    room = max(drawing.text_width(f"{words} 100%", 12.0) for words in (was, would_be)) + 12.0
    x = Scale(0.0, greatest, 1.0, max(40.0, width - room))
    shares = shares_alike(share for row in rows for share in (row.was, row.would_be))
    parts = []
    for place, row in enumerate(rows):
        y = _ROW * place + 14.0
        name = drawing.text(1, y, drawing.shortened(row.name, width, 13), class_="name halo")
        parts.append(drawing.group(name, class_=drawing.colour_of(row.look)))
        bars = ((was, row.was, f"area {activities.class_of('waiting')}"), (would_be, row.would_be, "estimate"))
        for line, (words, share, kind) in enumerate(bars):
            top = y + 8.0 + (_THICK + 3.0) * line
            said = f"{words} {shares(share)}"
            parts.append(drawing.bar(1, top, max(1.0, x(share) - 1.0), _THICK, class_=kind, hint=f"{row.name}: {said}"))
            parts.append(drawing.text(x(share) + 7.0, top + 13.0, said, class_="small"))
    bottom = _ROW * len(rows)
    parts.append(drawing.line(1, 18.0, 1, bottom - 6.0, class_="axis"))
    return drawing.svg(width, bottom, joined(parts), label=label)
