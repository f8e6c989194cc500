"""The tools of all charts: the canvas, text, axes, and the looks that distinguish lines and activities.

Nothing is shown by colour alone: lines differ in dashes and markers and bear their names, areas differ in patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from quorate.report.charts.markup import Markup, element, joined, number
from quorate.report.charts.scales import Scale

LOOKS = 8
"""The number of colours; further looks repeat them with other dashes."""
_DASHES = ("", "9 4", "2 3", "9 3 2 3", "14 4", "5 2", "1 5", "12 3 2 3 2 3", "4 6")
_MARKERS = ("circle", "square", "diamond", "up", "down", "cross", "ring")
NARROW = 480.0
"""Charts below this width are drawn for phones."""
_LETTER = 0.57
"""The mean width of a letter, as a share of the size of the font."""


def svg(width: float, height: float, *content: str, label: str) -> Markup:
    """Return a chart; `label` describes it, with the main numbers, for screen readers."""
    box = f"0 0 {number(width)} {number(height)}"
    kind = "chart narrow-chart" if width < NARROW else "chart"
    return element("svg", *content, class_=kind, viewBox=box, width=width, height=height, role="img", aria_label=label)


def group(*content: str, class_: str | None = None) -> Markup:
    """Return a `g` element with this content."""
    return element("g", *content, class_=class_)


def text(x: float, y: float, words: str, *, class_: str | None = None, anchor: str | None = None) -> Markup:
    """Return words on the base line `y`; `anchor` is "middle" or "end" where `x` is not their beginning."""
    return element("text", words, x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, *, class_: str, dashes: str = "") -> Markup:
    """Return a `line` element."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, stroke_dasharray=dashes or None)


def bar(x: float, y: float, width: float, height: float, *, class_: str, hint: str = "") -> Markup:
    """Return a rectangle; `hint` appears under the pointer."""
    inside = [element("title", hint)] if hint else []
    return element("rect", *inside, x=x, y=y, width=max(0.0, width), height=height, class_=class_)


def path(points: Iterable[tuple[float, float]]) -> str:
    """Return the `d` of a line through `points`: in tenths, and each relative to the one before, which is shorter."""
    tenths = [(round(x * 10.0), round(y * 10.0)) for x, y in points]
    (x, y), *_ = tenths
    ways = (_way(x2 - x1, y2 - y1) for (x1, y1), (x2, y2) in pairwise(tenths))
    return f"M{_way(x, y)}l{' '.join(ways)}" if len(tenths) > 1 else f"M{_way(x, y)}"


def _way(x: int, y: int) -> str:
    first, second = number(x / 10.0), number(y / 10.0)
    return f"{first}{second}" if second.startswith("-") else f"{first} {second}"


def text_width(words: str, size: float = 12.0) -> float:
    """Estimate the width of `words`."""
    return len(words) * size * _LETTER


def shortened(words: str, width: float, size: float = 12.0) -> str:
    """Return `words`, cut off to fit into `width`."""
    fitting = max(1, int(width / (size * _LETTER)))
    return words if len(words) <= fitting else words[: max(1, fitting - 1)] + "…"


def dashes_of(look: int) -> str:
    """Return the dashes of a line; none for the first look."""
    return _DASHES[look % len(_DASHES)]


def colour_of(look: int) -> str:
    """Return the class that gives a line or area its colour."""
    return f"s{look % LOOKS}"


def marker(x: float, y: float, look: int, size: float = 3.6) -> Markup:
    """Return the sign of a line; the first is a disc."""
    kind, r = _MARKERS[look % len(_MARKERS)], size
    if kind in ("circle", "ring"):
        return element("circle", cx=x, cy=y, r=r, class_="ring" if kind == "ring" else "mark")
    corners = {
        "square": [(-r, -r), (r, -r), (r, r), (-r, r)],
        "diamond": [(0.0, -1.3 * r), (1.3 * r, 0.0), (0.0, 1.3 * r), (-1.3 * r, 0.0)],
        "up": [(0.0, -1.25 * r), (1.2 * r, r), (-1.2 * r, r)],
        "down": [(0.0, 1.25 * r), (1.2 * r, -r), (-1.2 * r, -r)],
    }
    if kind == "cross":
        strokes = f"M{x - r:.1f} {y - r:.1f}L{x + r:.1f} {y + r:.1f}M{x - r:.1f} {y + r:.1f}L{x + r:.1f} {y - r:.1f}"
        return element("path", d=strokes, class_="cross")
    return element("path", d=path((x + dx, y + dy) for dx, dy in corners[kind]) + "Z", class_="mark")


def axis_below(scale: Scale, y: float, top: float, title: str, *, most: int = 6) -> Markup:
    """Draw a horizontal axis at `y`: round numbers, fine lines up to `top`, and the title with its unit."""
    ticks = [(number(scale(value)), words) for value, words in scale.ticks(most)]
    return joined(
        [
            element("path", d="".join(f"M{x} {number(top)}V{number(y)}" for x, _ in ticks), class_="grid"),
            _tick_words([element("text", words, x=x, y=y + 16) for x, words in ticks], "middle"),
            line(scale.begin, y, scale.end, y, class_="axis"),
            text(scale.end, y + 34, with_unit(title, scale), class_="axis-title", anchor="end"),
        ]
    )


def axis_left(scale: Scale, x: float, right: float) -> Markup:
    """Draw a vertical axis at `x`: round numbers and fine lines to `right`; its title stands above the chart."""
    ticks = [(scale(value), words) for value, words in scale.ticks()]
    lines = "".join(f"M{number(x)} {number(y)}H{number(right)}" for y, _ in ticks)
    words = [element("text", words, x=x - 8, y=y + 4) for y, words in ticks]
    return joined([element("path", d=lines, class_="grid"), _tick_words(words, "end")])


def _tick_words(words: Iterable[Markup], anchor: str) -> Markup:
    return element("g", *words, class_="tick", text_anchor=anchor)


def with_unit(title: str, scale: Scale) -> str:
    """Return the title of an axis with its unit: `training time, ms`."""
    return ", ".join(part for part in (title, scale.unit.name) if part) + (" (logarithmic)" if scale.is_log else "")


def spread(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Place things of these `sizes`, none over another, near the `wanted` places and in their order.

    Things that would touch stand side by side, around the mean of their wanted places. All lie between `low` and
    `high` if they fit.

    Returns:
        The middle of each.
    """
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    offsets: list[float] = []
    filled = 0.0
    for place in order:
        offsets.append(filled + sizes[place] / 2.0)
        filled += sizes[place]
    # Without their sizes, things that must not pass each other are numbers that must not fall.
    blocks: list[list[float]] = []
    for place, offset in zip(order, offsets, strict=True):
        blocks.append([wanted[place] - offset])
        while len(blocks) > 1 and fmean(blocks[-2]) >= fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = [max(low, min(fmean(block), high - filled)) for block in blocks for _ in block]
    places = [0.0] * len(wanted)
    for place, start, offset in zip(order, level, offsets, strict=True):
        places[place] = start + offset
    return places
