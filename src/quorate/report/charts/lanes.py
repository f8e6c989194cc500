"""Who did what when: a lane for each rank, its spans in the colours and patterns of activities."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.report.charts import activities, drawing
from quorate.report.charts.markup import Markup, element, joined, number
from quorate.report.charts.scales import scale_of

Span = tuple[str, float, float]
"""Activity, begin and end, in seconds."""
SPANS = 20_000
"""What a chart draws at most; what comes later in a lane is left out."""
_ROW = 27.0


def lane_chart(
    lanes: Sequence[tuple[str, Sequence[Span]]], *, seconds: float, title: str, width: float, label: str
) -> Markup:
    """One scale for all lanes, `seconds` long. Spans of one activity in one lane are one path of wide strokes."""
    known = {name for _, spans in lanes for name, _, _ in spans}
    ordered = [name for name in activities.SHOWN if name in known] + sorted(known - set(activities.SHOWN))
    legend, top = activities.key(ordered, width, 2.0)
    left = min(110.0, max(drawing.text_width(name) for name, _ in lanes) + 12.0)
    foot = top + _ROW * len(lanes)
    x = scale_of([0.0, seconds], left, width - 10.0, kind="seconds", from_zero=True)
    parts: list[str] = [legend, drawing.axis_below(x, foot, top, title, most=8)]
    most = SPANS // len(lanes)
    for place, (name, spans) in enumerate(lanes):
        y = top + _ROW * (place + 0.5)
        parts.append(drawing.text(left - 8, y + 4, name, class_="row-name", anchor="end"))
        strokes: dict[str, list[str]] = {}
        last: dict[str, int] = {}
        for activity, begin, end in spans[:most]:
            # Tenths, each span from where the one before of its kind ended: a chart has thousands of them.
            at, wide = round(x(begin) * 10.0), max(3, round((x(end) - x(begin)) * 10.0))
            move = (
                f"m{number((at - last[activity]) / 10.0)} 0"
                if activity in last
                else f"M{number(at / 10.0)} {number(y)}"
            )
            strokes.setdefault(activity, []).append(f"{move}h{number(wide / 10.0)}")
            last[activity] = at + wide
        drawn = (
            element("path", element("title", f"{name}: {activities.words_of(activity)}"), d="".join(pieces),
                    class_=f"lane {activities.class_of(activity)}")
            for activity, pieces in strokes.items()
        )  # fmt: skip
        parts.append(joined(drawn))
    return drawing.svg(width, foot + 42.0, *parts, label=label)
