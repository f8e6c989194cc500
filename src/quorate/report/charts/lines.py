"""Curves with their seeds as bands: quality or loss against time, examples or bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quorate.report.charts import drawing, labels
from quorate.report.charts.bands import Points, band, thinned
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Kind, Scale, scale_of

POINTS = 2.0
"""About how many points all curves of a chart have together, for each unit of its width."""
_MARKS = 5
"""Markers along a line, besides the one at its end."""
_LABEL = 240.0
"""The most room for a name at the right."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One side of the comparison: a curve for each seed."""

    name: str
    look: int
    curves: Sequence[Points]
    reached: float | None = None
    """The mean place on the x axis at which the line reached the target."""
    is_of_runs: bool = True
    """Whether a curve is a run; a single one is said to be of one seed."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The quantities on the axes."""

    x: str
    x_kind: Kind
    y: str
    target: float | None = None
    target_words: str = ""


def line_chart(lines: Sequence[Line], axes: Axes, *, width: float, height: float, label: str) -> Markup:
    """Draw the means over seeds, and bands from the lowest to the highest seed, or seeds as fine lines without common
    x.

    Lines that stop early are of runs that ended early. Lines without points are not drawn.
    """
    shown = [line for line in lines if any(line.curves)]
    title = axes.y
    if len(shown) > 1 and all(_is_one_seed(line) for line in shown):  # said once, and not of every line
        shown, title = [replace(line, is_of_runs=False) for line in shown], f"{axes.y}; one seed each"
    narrow = width < drawing.NARROW
    top = 34.0 + (18.0 * len(shown) if narrow else 0.0)
    room = min(_LABEL, _room(shown))
    left, right, bottom = (44.0, width - 14.0, height - 44.0) if narrow else (60.0, width - room, height - 44.0)
    points = [point for line in shown for curve in line.curves for point in curve]
    x = scale_of([0.0, *(x for x, _ in points)], left, right, kind=axes.x_kind)
    target = [] if axes.target is None else [axes.target]
    y = scale_of([*(y for _, y in points), *target], bottom, top, may_be_log=True, round_ends=True)
    most = max(20, int(POINTS * width / max(1, sum(len(line.curves) for line in shown))))
    means = [_mean(line, most) for line in shown]
    parts = [
        drawing.text(0, 14, drawing.with_unit(title, y), class_="axis-title"),
        drawing.axis_left(y, left, right),
        drawing.axis_below(x, bottom, top, axes.x, most=4 if narrow else 8),
        *(_bands(line, x, y, most) for line in shown),
    ]
    if axes.target is not None:
        parts.append(_target(axes, [line for line in shown if line.reached is not None], x, y))
    parts += [_line(line, mean, x, y) for line, mean in zip(shown, means, strict=True)]
    if narrow:
        parts.append(_key(shown, width))
    else:
        places = [[(x(a), y(b)) for a, b in mean] for mean in means]
        parts.append(_names(shown, places, left, width, top, bottom))
    return drawing.svg(width, height, *parts, label=label)


def _mean(line: Line, most: int) -> Points:
    curves = [curve for curve in line.curves if curve]
    common = [(x, mean) for x, mean, _, _ in band(curves, most)]
    return common or thinned(curves[0], most)


def _room(lines: Sequence[Line]) -> float:
    return max((drawing.text_width(_name(line), labels.SIZE) for line in lines), default=0.0) + 14.0


def _bands(line: Line, x: Scale, y: Scale, most: int) -> Markup:
    curves = [curve for curve in line.curves if curve]
    if len(curves) < 2:
        return Markup()
    rows = band(curves, most)
    if len(rows) > 1:
        around = [(x(a), y(high)) for a, _, _, high in rows] + [(x(a), y(low)) for a, _, low, _ in reversed(rows)]
        drawn = [element("path", d=drawing.path(around) + "Z", class_="band")]
    else:
        paths = (drawing.path((x(a), y(b)) for a, b in thinned(curve, most)) for curve in curves)
        drawn = [element("path", d=path, class_="seed") for path in paths]
    return drawing.group(*drawn, class_=drawing.colour_of(line.look))


def _line(line: Line, mean: Points, x: Scale, y: Scale) -> Markup:
    places = [(x(a), y(b)) for a, b in mean]
    stroke = element(
        "path", d=drawing.path(places), class_="line", stroke_dasharray=drawing.dashes_of(line.look) or None
    )
    stride = max(1, len(places) // _MARKS)
    # Each line starts its markers elsewhere, so that they do not hide each other where lines run together.
    marked = places[(line.look * stride // 3) % stride :: stride][:_MARKS]
    marks = [drawing.marker(a, b, line.look) for a, b in marked] + [drawing.marker(*places[-1], line.look, 4.6)]
    return drawing.group(element("title", _name(line)), stroke, *marks, class_=drawing.colour_of(line.look))


def _target(axes: Axes, reached: Sequence[Line], x: Scale, y: Scale) -> Markup:
    assert axes.target is not None
    place = y(axes.target)
    parts = [drawing.line(x.begin, place, x.end, place, class_="target")]
    parts.append(drawing.text(x.begin + 6, place - 6, axes.target_words, class_="target-label halo"))
    for line in reached:
        at = x(line.reached or 0.0)
        mark = [drawing.line(at, place, at, y.begin, class_="drop"), drawing.marker(at, y.begin, line.look, 3.2)]
        parts.append(drawing.group(element("title", _name(line)), *mark, class_=drawing.colour_of(line.look)))
    return joined(parts)


def _names(
    lines: Sequence[Line], places: Sequence[Points], left: float, right: float, top: float, bottom: float
) -> Markup:
    words = [drawing.shortened(_name(line), _LABEL - 14.0, labels.SIZE) for line in lines]
    placed = labels.placed(words, places, left=left, right=right, top=top, bottom=bottom)
    parts = []
    for line, label in zip(lines, placed, strict=True):
        name = drawing.text(label.x, label.y, label.words, class_="name halo")
        parts.append(drawing.group(element("title", _name(line)), name, class_=drawing.colour_of(line.look)))
    return joined(parts)


def _key(lines: Sequence[Line], width: float) -> Markup:
    parts = []
    for place, line in enumerate(lines):
        y = 34.0 + 18.0 * place
        dashes = drawing.dashes_of(line.look) or None
        piece = element("path", d=f"M2 {y - 4}L34 {y - 4}", class_="line", stroke_dasharray=dashes)
        name = drawing.text(42, y, drawing.shortened(_name(line), width - 46.0, 12.5), class_="name")
        parts.append(
            drawing.group(piece, drawing.marker(18, y - 4, line.look), name, class_=drawing.colour_of(line.look))
        )
    return joined(parts)


def _name(line: Line) -> str:
    return f"{line.name} (one seed)" if _is_one_seed(line) else line.name


def _is_one_seed(line: Line) -> bool:
    return line.is_of_runs and sum(1 for curve in line.curves if curve) == 1
