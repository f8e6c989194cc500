"""Curves with their seeds as bands: quality or loss against time, examples or bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quorate.report.charts import drawing, labels
from quorate.report.charts.bands import Points, band, thinned
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Kind, Scale, scale_of

POINTS = 2.0
"""Of all curves of a chart together, for each unit of its width; about."""
_MARKS = 5
"""Markers along a line, besides the one at its end."""
_LABEL = 240.0
"""The room for a name at the right, at most."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One side of the comparison: a curve for each seed."""

    name: str
    look: int
    curves: Sequence[Points]
    reached: float | None = None
    """Where on the x axis it reached the target, in the mean."""
    is_of_runs: bool = True
    """Whether a curve is a run; one alone is said to be of one seed."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What the axes count."""

    x: str
    x_kind: Kind
    y: str
    target: float | None = None
    target_words: str = ""


def line_chart(lines: Sequence[Line], axes: Axes, *, width: float, height: float, label: str) -> Markup:
    """Lines of the means over seeds, and bands from the lowest to the highest seed, or seeds as fine lines where they
    have no x in common.

    Lines that stop early are those that were done early. Draws nothing for lines without points.
    """
    shown = [one for one in lines if any(one.curves)]
    title = axes.y
    if len(shown) > 1 and all(_is_one_seed(one) for one in shown):  # said once, and not of every line
        shown, title = [replace(one, is_of_runs=False) for one in shown], f"{axes.y}; one seed each"
    narrow = width < drawing.NARROW
    top = 34.0 + (18.0 * len(shown) if narrow else 0.0)
    room = min(_LABEL, _room(shown))
    left, right, bottom = (44.0, width - 14.0, height - 44.0) if narrow else (60.0, width - room, height - 44.0)
    points = [point for one in shown for curve in one.curves for point in curve]
    x = scale_of([0.0, *(x for x, _ in points)], left, right, kind=axes.x_kind)
    target = [] if axes.target is None else [axes.target]
    y = scale_of([*(y for _, y in points), *target], bottom, top, may_be_log=True, round_ends=True)
    most = max(20, int(POINTS * width / max(1, sum(len(one.curves) for one in shown))))
    means = [_mean(one, most) for one in shown]
    parts = [
        drawing.text(0, 14, drawing.with_unit(title, y), class_="axis-title"),
        drawing.axis_left(y, left, right),
        drawing.axis_below(x, bottom, top, axes.x, most=4 if narrow else 8),
        *(_bands(one, x, y, most) for one in shown),
    ]
    if axes.target is not None:
        parts.append(_target(axes, [one for one in shown if one.reached is not None], x, y))
    parts += [_line(one, mean, x, y) for one, mean in zip(shown, means, strict=True)]
    if narrow:
        parts.append(_key(shown, width))
    else:
        places = [[(x(a), y(b)) for a, b in mean] for mean in means]
        parts.append(_names(shown, places, left, width, top, bottom))
    return drawing.svg(width, height, *parts, label=label)


def _mean(one: Line, most: int) -> Points:
    curves = [curve for curve in one.curves if curve]
    common = [(x, mean) for x, mean, _, _ in band(curves, most)]
    return common or thinned(curves[0], most)


def _room(lines: Sequence[Line]) -> float:
    """For the names beside the ends of their lines."""
    return max((drawing.text_width(_name(one), labels.SIZE) for one in lines), default=0.0) + 14.0


def _bands(one: Line, x: Scale, y: Scale, most: int) -> Markup:
    curves = [curve for curve in one.curves if curve]
    if len(curves) < 2:
        return Markup()
    rows = band(curves, most)
    if len(rows) > 1:
        around = [(x(a), y(high)) for a, _, _, high in rows] + [(x(a), y(low)) for a, _, low, _ in reversed(rows)]
        drawn = [element("path", d=drawing.path(around) + "Z", class_="band")]
    else:
        ways = (drawing.path((x(a), y(b)) for a, b in thinned(curve, most)) for curve in curves)
        drawn = [element("path", d=way, class_="seed") for way in ways]
    return drawing.group(*drawn, class_=drawing.colour_of(one.look))


def _line(one: Line, mean: Points, x: Scale, y: Scale) -> Markup:
    places = [(x(a), y(b)) for a, b in mean]
    stroke = element(
        "path", d=drawing.path(places), class_="line", stroke_dasharray=drawing.dashes_of(one.look) or None
    )
    stride = max(1, len(places) // _MARKS)
    # Each line starts its markers elsewhere, so that they do not hide each other where lines run together.
    marked = places[(one.look * stride // 3) % stride :: stride][:_MARKS]
    marks = [drawing.marker(a, b, one.look) for a, b in marked] + [drawing.marker(*places[-1], one.look, 4.6)]
    return drawing.group(element("title", _name(one)), stroke, *marks, class_=drawing.colour_of(one.look))


def _target(axes: Axes, reached: Sequence[Line], x: Scale, y: Scale) -> Markup:
    """The line of the target, and from it down to the axis where each side reached it."""
    assert axes.target is not None
    place = y(axes.target)
    parts = [drawing.line(x.begin, place, x.end, place, class_="target")]
    parts.append(drawing.text(x.begin + 6, place - 6, axes.target_words, class_="target-label halo"))
    for one in reached:
        at = x(one.reached or 0.0)
        mark = [drawing.line(at, place, at, y.begin, class_="drop"), drawing.marker(at, y.begin, one.look, 3.2)]
        parts.append(drawing.group(element("title", _name(one)), *mark, class_=drawing.colour_of(one.look)))
    return joined(parts)


def _names(
    lines: Sequence[Line], places: Sequence[Points], left: float, right: float, top: float, bottom: float
) -> Markup:
    """Each name beside the end of its line."""
    words = [drawing.shortened(_name(one), _LABEL - 14.0, labels.SIZE) for one in lines]
    found = labels.placed(words, places, left=left, right=right, top=top, bottom=bottom)
    parts = []
    for one, label in zip(lines, found, strict=True):
        name = drawing.text(label.x, label.y, label.words, class_="name halo")
        parts.append(drawing.group(element("title", _name(one)), name, class_=drawing.colour_of(one.look)))
    return joined(parts)


def _key(lines: Sequence[Line], width: float) -> Markup:
    """The names above the chart, each with a piece of its line."""
    parts = []
    for place, one in enumerate(lines):
        y = 34.0 + 18.0 * place
        dashes = drawing.dashes_of(one.look) or None
        piece = element("path", d=f"M2 {y - 4}L34 {y - 4}", class_="line", stroke_dasharray=dashes)
        name = drawing.text(42, y, drawing.shortened(_name(one), width - 46.0, 12.5), class_="name")
        parts.append(
            drawing.group(piece, drawing.marker(18, y - 4, one.look), name, class_=drawing.colour_of(one.look))
        )
    return joined(parts)


def _name(one: Line) -> str:
    return f"{one.name} (one seed)" if _is_one_seed(one) else one.name


def _is_one_seed(one: Line) -> bool:
    return one.is_of_runs and sum(1 for curve in one.curves if curve) == 1
