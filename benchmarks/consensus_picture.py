"""The picture of `consensus.py`: distance by round for one size, and rounds by size, by topology, as one SVG."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chart_style import chart_style

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale


class Spread(Protocol):
    """How numbers became equal: distances after 0, 1, 2 ... rounds, the first ones at least; rounds until it was so."""

    @property
    def distances(self) -> Sequence[float]: ...
    @property
    def rounds(self) -> int | None: ...


Spreads = Mapping[tuple[str, int], Spread]
WIDTH, HEIGHT = 1120.0, 440.0
_LEAST = 1e-3
_SHOWN_ROUNDS = 60.0


def drawn(reckoned: Spreads, measured: Spreads, share: float) -> str:
    """Lines and small marks are reckoned, large marks are virtual workers; distances are shares of the first ones."""
    names = list(dict.fromkeys(name for name, _ in reckoned))
    sizes = sorted({size for _, size in reckoned})
    label = (
        f"Distance from the mean by round for {sizes[0]} workers, and rounds to {share:g} of it by number of workers"
    )
    parts = [
        element("style", Markup(chart_style())),
        element("rect", x=0, y=0, width=WIDTH, height=HEIGHT, fill="var(--card)"),
        _by_round(names, sizes[0], reckoned, measured, share),
        _by_size(names, sizes, reckoned, measured, f"rounds to {share:g} of it (logarithmic)"),
    ]
    box = f"0 0 {WIDTH:g} {HEIGHT:g}"
    svg = {"class_": "chart", "viewBox": box, "width": WIDTH, "height": HEIGHT, "role": "img", "aria_label": label}
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", **svg)


def _by_round(names: Sequence[str], size: int, reckoned: Spreads, measured: Spreads, share: float) -> Markup:
    left, right, top, bottom = 60.0, 460.0, 40.0, HEIGHT - 50.0
    x, y = Scale(0.0, _SHOWN_ROUNDS, left, right), Scale(_LEAST, 1.0, bottom, top, is_log=True)
    parts = [
        drawing.text(8, 18, f"distance from the mean, of what it was ({size} workers)", class_="axis-title"),
        drawing.axis_left(y, left, right),
        drawing.axis_below(x, bottom, top, "rounds"),
        drawing.line(left, y(share), right, y(share), class_="target"),
    ]
    for look, name in enumerate(names):
        way = [(n, d) for n, d in enumerate(reckoned[name, size].distances) if n <= _SHOWN_ROUNDS]
        seen = measured[name, size].distances if (name, size) in measured else ()
        dots = [(n, d) for n, d in enumerate(seen) if n <= _SHOWN_ROUNDS and d >= _LEAST]
        stride = max(1, len(dots) // 6)
        way = [(n, max(d, _LEAST)) for n, d in way]
        parts.append(_one(look, name, [(x(n), y(d)) for n, d in way], [(x(n), y(d)) for n, d in dots[stride::stride]]))
    return joined(parts)


def _by_size(names: Sequence[str], sizes: Sequence[int], reckoned: Spreads, measured: Spreads, what: str) -> Markup:
    left, right, top, bottom = 560.0, 880.0, 40.0, HEIGHT - 50.0
    x = Scale(sizes[0] / 1.3, sizes[-1] * 1.3, left, right, is_log=True)
    y = Scale(1.0, max(one.rounds or 1 for one in reckoned.values()) * 1.5, bottom, top, is_log=True)
    parts = [
        drawing.text(left - 60, 18, what, class_="axis-title"),
        drawing.axis_left(y, left, right),
        drawing.line(left, bottom, right, bottom, class_="axis"),
        drawing.text(right, bottom + 34, "workers (logarithmic)", class_="axis-title", anchor="end"),
    ]
    parts += [drawing.text(x(size), bottom + 16, f"{size:,}", class_="tick", anchor="middle") for size in sizes]
    ends: list[tuple[int, str, float, float]] = []
    for look, name in enumerate(names):
        way = [(x(s), y(one.rounds)) for s in sizes if (one := reckoned.get((name, s))) and one.rounds]
        dots = [(x(s), y(one.rounds)) for s in sizes if (one := measured.get((name, s))) and one.rounds]
        if way:
            parts.append(_one(look, name, way, dots))
            small = [drawing.marker(a, b, look, 2.0) for a, b in way]
            parts.append(drawing.group(*small, class_=drawing.colour_of(look)))
            ends.append((look, name, *way[-1]))
    places = drawing.spread([y for *_, y in ends], [18.0] * len(ends), top - 4.0, bottom + 4.0)
    for (look, name, x_end, y_end), place in zip(ends, places, strict=True):
        lead = element(
            "path", d=drawing.path([(x_end + 7, y_end), (right + 4, place), (right + 10, place)]), class_="leader"
        )
        words = drawing.text(right + 14, place + 4, name, class_="name")
        parts.append(drawing.group(lead, words, class_=drawing.colour_of(look)))
    return joined(parts)


def _one(look: int, name: str, way: Sequence[tuple[float, float]], dots: Sequence[tuple[float, float]]) -> Markup:
    parts = [element("title", name)]
    parts.append(element("path", d=drawing.path(way), class_="line", stroke_dasharray=drawing.dashes_of(look) or None))
    parts += [drawing.marker(a, b, look) for a, b in dots]
    return drawing.group(*parts, class_=drawing.colour_of(look))
