"""Predicted and measured seconds: two bars for each name, one below the other, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element
from quorate.report.charts.scales import Scale
from quorate.report.wording import seconds_in_words

_ROW, _THICK = 52.0, 9.0
_BESIDE = 140.0
"""Room for the words behind the longest bar."""


@dataclass(frozen=True)
class PredictedMeasured:
    """A name, words for the right end of its row, and its two times; None: not measured."""

    name: str
    note: str
    predicted: float
    measured: float | None


def pair_chart(rows: Sequence[PredictedMeasured], *, title: str, width: float, label: str) -> Markup:
    """Draw the bars from 0 on one scale."""
    greatest = max(max(row.predicted, row.measured or 0.0) for row in rows) or 1.0
    x = Scale(0.0, greatest, 8.0, width - _BESIDE)
    parts = []
    for place, row in enumerate(rows):
        top = _ROW * place + 16.0
        note = drawing.text(width, top, row.note, class_="small", anchor="end")
        name = drawing.shortened(row.name, width - drawing.text_width(row.note) - 16.0, 13)
        parts += [drawing.text(8.0, top, name, class_="name halo"), note]
        for number, (kind, seconds) in enumerate((("predicted", row.predicted), ("measured", row.measured))):
            if seconds is None:
                continue
            y, words = top + 6.0 + number * (_THICK + 4.0), f"{kind} {seconds_in_words(seconds)}"
            bar = element("path", d=f"M8 {y:.1f}H{x(seconds):.1f}v{_THICK}H8Z", class_="bins")
            after = drawing.text(x(seconds) + 5.0, y + _THICK, words, class_="mark-label halo")
            parts.append(
                drawing.group(element("title", f"{row.name}: {words}"), bar, after, class_=drawing.colour_of(number))
            )
    bottom = _ROW * len(rows) + 14.0
    parts.append(drawing.text(8.0, bottom, title, class_="axis-title"))
    return drawing.svg(width, bottom + 8.0, *parts, label=label)
