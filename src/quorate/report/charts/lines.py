"""Curves with their seeds as bands, and their names: quality or loss against time, examples or bytes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Kind, Scale, scale_of

Points = Sequence[tuple[float, float]]
"""(x, y), sorted by x."""


def finite(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Return the finite points, sorted by x."""
    pairs = zip(xs, ys, strict=True)
    return sorted((float(x), float(y)) for x, y in pairs if math.isfinite(x) and math.isfinite(y))


def at(points: Points, x: float) -> float:
    """Return y at `x` by linear interpolation; beyond the ends, the y of the end."""
    place = bisect_right(points, x, key=lambda point: point[0])
    if place == 0:
        return points[0][1]
    if place == len(points):
        return points[-1][1]
    (x1, y1), (x2, y2) = points[place - 1], points[place]
    return y1 + (y2 - y1) * (x - x1) / (x2 - x1)


def thinned(points: Points, most: int) -> Points:
    """Return at most `most` of the points, evenly chosen, with the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]


def band(curves: Sequence[Points], most: int) -> list[tuple[float, float, float, float]]:
    """Return (x, mean, lowest, highest) where all curves are known: from the last beginning to the first end.

    The x are those of every curve's points, thinned to `most`. Empty if the curves have no x in common.
    """
    if not curves or not all(curves):
        return []
    low, high = max(points[0][0] for points in curves), min(points[-1][0] for points in curves)
    xs = sorted({min(max(x, low), high) for points in curves for x, _ in points}) if low <= high else []
    rows = []
    for x, _ in thinned([(x, 0.0) for x in xs], most):
        ys = [at(points, x) for points in curves]
        rows.append((x, math.fsum(ys) / len(ys), min(ys), max(ys)))
    return rows


POINTS = 1.0
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

    @property
    def end(self) -> float:
        """The y at which the drawn line ends; the line has points."""
        return _mean(self, 2)[-1][1]


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
    room = min(_LABEL, max((drawing.text_width(_name(line), SIZE) for line in shown), default=0.0) + 14.0)
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
    words = [drawing.shortened(_name(line), _LABEL - 14.0, SIZE) for line in lines]
    placed = placed_names(words, places, left=left, right=right, top=top, bottom=bottom)
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


Point = tuple[float, float]
SIZE = 13.0
_TALL = 16.0
_GAP = 9.0
"""The distance between the last point and the name."""
_ROWS = 4
"""The number of rows above and below its end in which a name may be put."""
_BESIDE = 7.0
"""The least distance between two names in a row."""
_APART = 4.0
"""The distance between points that are considered along a curve."""
_COVERS, _ENDS, _HIDES = 1000.0, 60.0, 3.0
"""The costs of covering another name, of hiding the end of a curve, and a point of one, in units of distance."""


@dataclass(frozen=True, kw_only=True)
class Label:
    """The place of a name: its left end, and its base line."""

    words: str
    x: float
    y: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom."""
        wide = drawing.text_width(self.words, SIZE)
        return self.x, self.y - 0.75 * _TALL, self.x + wide, self.y + 0.25 * _TALL


def placed_names(
    names: Sequence[str], curves: Sequence[Sequence[Point]], *, left: float, right: float, top: float, bottom: float
) -> list[Label]:
    """Return a label for each curve, as near to its last point as possible; curves are places on the drawing.

    Among the places around an end, the label takes one where it covers no other, hides little of the curves, and is
    near. Curves that end furthest right choose first: they have the least room.
    """
    dots = [list(_along(curve)) for curve in curves]
    ends = [curve[-1] for curve in curves]
    labels: dict[int, Label] = {}
    for place in sorted(range(len(names)), key=lambda place: (-curves[place][-1][0], curves[place][-1][1])):
        candidates = _candidates(names[place], curves[place][-1], left, right, top, bottom)
        labels[place] = min(
            candidates, key=lambda candidate: candidate[0] + _cost(candidate[1], dots, ends, labels.values())
        )[1]
    return [labels[place] for place in range(len(names))]


def _along(curve: Sequence[Point]) -> Iterator[Point]:
    """Yield points close enough to each other that no label fits between two of them."""
    yield from curve[:1]
    for (x1, y1), (x2, y2) in pairwise(curve):
        count = max(1, int(max(abs(x2 - x1), abs(y2 - y1)) / _APART))
        yield from ((x1 + (x2 - x1) * n / count, y1 + (y2 - y1) * n / count) for n in range(1, count + 1))


def _candidates(
    words: str, end: Point, left: float, right: float, top: float, bottom: float
) -> Iterator[tuple[float, Label]]:
    """Yield labels right of the end, in its row or near ones, or centred over and under it, each after its distance."""
    x, y = end
    wide = drawing.text_width(words, SIZE)
    for row in range(2 * _ROWS + 1):
        shift = (row + 1) // 2 * _TALL * (1 if row % 2 else -1)
        base = min(max(y + 4.0 + shift, top - 4.0), bottom - 3.0)
        for begin in (x + _GAP, x - wide / 2.0) if shift else (x + _GAP,):
            at = min(max(begin, left), right - wide)
            yield abs(shift) + abs(at - x - _GAP) / 4.0, Label(words=words, x=at, y=base)


def _cost(label: Label, dots: Sequence[Sequence[Point]], ends: Sequence[Point], others: Iterable[Label]) -> float:
    box = label.box
    hidden = sum(_within(box, dot) for curve in dots for dot in curve)
    covered = sum(_overlap(box, other.box) for other in others)
    marks = sum(_within(box, end) for end in ends)
    return _COVERS * covered + _HIDES * hidden + _ENDS * marks


def _within(box: tuple[float, float, float, float], dot: Point) -> bool:
    return box[0] - 2.0 <= dot[0] <= box[2] + 2.0 and box[1] <= dot[1] <= box[3]


def _overlap(box: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return (
        box[0] < other[2] + _BESIDE
        and other[0] < box[2] + _BESIDE
        and box[1] < other[3] - 1.0
        and other[1] + 1.0 < box[3]
    )
