"""Activities over time: a lane for each rank, its spans in the colours and patterns of activities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.report.charts import activities, drawing
from quorate.report.charts.markup import Markup, element, joined, number
from quorate.report.charts.scales import Scale, scale_of

Span = tuple[str, float, float]
"""Activity, begin and end, in seconds."""
SPANS = 20_000
"""The most spans in a chart; the later ones of a lane are left out."""
_ROW = 27.0
_FRESH, _LATE, _ROUND = "fresh gradient", "late gradient, to the round that took it in", "round"


@dataclass(frozen=True)
class RoundLine:
    """A round across the lanes: its time, and its gradients as (lane, time of arrival, is it late)."""

    name: str
    time: float
    gradients: Sequence[tuple[int, float, bool]]


def lane_chart(
    lanes: Sequence[tuple[str, Sequence[Span]]],
    *,
    seconds: float,
    title: str,
    width: float,
    label: str,
    rounds: Sequence[RoundLine] = (),
) -> Markup:
    """Draw all lanes on one scale, `seconds` long. Spans of one activity in one lane are one path of wide strokes.

    Rounds are lines across the lanes. A dot marks the arrival of a gradient, full if it was fresh; from it a fine line
    leads to the round that took it in. A round did not wait for a rank that is still computing at its line.
    """
    names = {name for _, spans in lanes for name, _, _ in spans}
    ordered = [name for name in activities.SHOWN if name in names] + sorted(names - set(activities.SHOWN))
    legend, top = activities.key(ordered, width, 2.0)
    if rounds:
        legend = joined([legend, _key(top - 2.0)])
        top += 26.0
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
    parts.append(_rounds(rounds, x, top, foot))
    return drawing.svg(width, foot + 42.0, *parts, label=label)


def _rounds(rounds: Sequence[RoundLine], x: Scale, top: float, foot: float) -> Markup:
    """Draw rounds within the scale: a gradient from before it has no dot, only its line to the round."""
    lines, links, dots = [], [], {False: "", True: ""}
    for line in rounds:
        at = x(line.time)
        hint = element("title", line.name)
        lines.append(element("path", hint, d=f"M{number(at)} {number(top - 6.0)}V{number(foot)}", class_="round"))
        for lane, time, is_late in line.gradients:
            y = top + _ROW * (lane + 0.5)
            links.append(f"M{x(max(0.0, time)):.1f} {number(y)}H{at:.1f}")
            if time >= 0.0:
                dots[is_late] += f"M{x(time):.1f} {number(y)}h0"
    links_path = "".join(links)
    link_elements = [element("path", d=links_path, class_=kind) for kind in ("way-halo", "way")] if links else []
    return joined([*lines, *link_elements, *(_dots(d, is_late) for is_late, d in dots.items() if d)])


def _dots(d: str, is_late: bool) -> Markup:
    """Draw all dots of a kind as the round ends of strokes without length (they may be many); twice, for rims."""
    kind = "late" if is_late else "fresh"
    return joined(element("path", d=d, class_=f"{part} {kind}") for part in ("rim", "gradient"))


def _key(y: float) -> Markup:
    parts: list[str] = []
    x = 1.0
    for words, sign in ((_ROUND, "|"), (_FRESH, "full"), (_LATE, "hollow")):
        if sign == "|":
            parts.append(element("path", d=f"M{number(x + 9)} {number(y - 1)}v14", class_="round"))
        else:
            parts.append(element("path", d=f"M{number(x + 3)} {number(y + 6)}h16", class_="way"))
            parts.append(_dots(f"M{number(x + 5)} {number(y + 6)}h0", sign == "hollow"))
        parts.append(drawing.text(x + 25, y + 10, words, class_="key"))
        x += 28.0 + drawing.text_width(words) + 12.0
    return joined(parts)
