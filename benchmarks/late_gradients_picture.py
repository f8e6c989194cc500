"""The picture of `late_gradients.py`: the loss by learning rate, as one SVG.

`python benchmarks/late_gradients_picture.py RESULT.json FILE.svg` draws it from a result that was kept.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import late_trainings as late
from chart_style import chart_style
from record import Figure

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale

WIDTH, HEIGHT = 1120.0, 420.0
NAMES = {
    late.ALL_REDUCE: "all-reduce",
    late.SOLO_COMMON: "eager-solo, common momentum",
    late.SOLO: "eager-solo, momentum of workers",
    late.MAJORITY: "eager-majority, momentum of workers",
}
SHOWN = (late.HEAVY_BALL, late.ADAMW)
HIGHEST = 10.0
"""Losses above it are drawn at the upper end."""
_APART = 32.0
"""Of two rates on the axis, at least."""

Curve = Mapping[float, float]
"""Median loss by learning rate."""


def of_rows(rows: Sequence[Figure]) -> str:
    """The picture, from what the benchmark reports."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    pattern = re.compile(rf"{late.REGRESSION}, 4 workers, random pauses, (.*): loss at (\S+), (.*)")
    for row in rows:
        told = pattern.fullmatch(row.name)
        if told is not None:
            found.setdefault((told[1], told[3]), {})[float(told[2])] = row.median
    return drawn(found)


def drawn(found: Mapping[tuple[str, str], Curve]) -> str:
    """One chart for each optimizer; `found` is by optimizer and side."""
    label = (
        "Held-out loss by learning rate for SGD with momentum and for AdamW, four workers, under all-reduce and quorums"
    )
    parts = [
        element("style", Markup(chart_style())),
        element("rect", x=0, y=0, width=WIDTH, height=HEIGHT, fill="var(--card)"),
        _chart(SHOWN[0], found, 60.0, 400.0, has_names=False),
        _chart(SHOWN[1], found, 470.0, 810.0, has_names=True),
    ]
    box = f"0 0 {WIDTH:g} {HEIGHT:g}"
    svg: dict[str, str | float] = {
        "class_": "chart",
        "viewBox": box,
        "width": WIDTH,
        "height": HEIGHT,
        "role": "img",
        "aria_label": label,
    }
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", **svg)


def _chart(
    optimizer: str, found: Mapping[tuple[str, str], Curve], left: float, right: float, *, has_names: bool
) -> Markup:
    top, bottom = 40.0, HEIGHT - 50.0
    curves = {side: found[optimizer, side] for side in NAMES if (optimizer, side) in found}
    rates = sorted({rate for curve in curves.values() for rate in curve})
    least = min(loss for curve in curves.values() for loss in curve.values())
    x = Scale(rates[0] / 1.2, rates[-1] * 1.2, left, right, is_log=True)
    y = Scale(min(least / 1.3, 0.01), HIGHEST, bottom, top, is_log=True)
    parts = [
        drawing.text(
            left - 52,
            18,
            f"held-out loss up to {HIGHEST:g}, {optimizer} (logarithmic)",
            class_="axis-title",
        ),
        drawing.axis_left(y, left, right),
        drawing.line(left, bottom, right, bottom, class_="axis"),
        drawing.text(right, bottom + 34, "learning rate (logarithmic)", class_="axis-title", anchor="end"),
    ]
    place = -math.inf
    for rate in rates:
        if x(rate) >= place + _APART:
            place = x(rate)
            parts.append(drawing.text(place, bottom + 16, f"{rate:g}", class_="tick", anchor="middle"))
    ends: list[tuple[int, str, float, float]] = []
    for look, (side, name) in enumerate(NAMES.items()):
        if side in curves:
            way = [(x(rate), y(loss)) for rate, loss in sorted(curves[side].items())]
            parts.append(_line(look, name, way))
            ends.append((look, name, *way[-1]))
    if has_names:
        places = drawing.spread([end for *_, end in ends], [18.0] * len(ends), top - 4.0, bottom + 4.0)
        for (look, name, x_end, y_end), place in zip(ends, places, strict=True):
            way = [(x_end + 7, y_end), (right + 8, place), (right + 14, place)]
            lead = element("path", d=drawing.path(way), class_="leader")
            words = drawing.text(right + 18, place + 4, name, class_="name")
            parts.append(drawing.group(lead, words, class_=drawing.colour_of(look)))
    return joined(parts)


def _line(look: int, name: str, way: Sequence[tuple[float, float]]) -> Markup:
    parts = [element("title", name)]
    parts.append(element("path", d=drawing.path(way), class_="line", stroke_dasharray=drawing.dashes_of(look) or None))
    parts += [drawing.marker(a, b, look) for a, b in way]
    return drawing.group(*parts, class_=drawing.colour_of(look))


if __name__ == "__main__":
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    text = of_rows([Figure(**row) for row in told["rows"]])
    Path(sys.argv[2]).write_text(text + "\n", encoding="utf-8")
