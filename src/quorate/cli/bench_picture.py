"""The picture of `quorate bench`: the bus bandwidth of each operation over the size, Quorate's beside torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale, scale_of
from quorate.report.wording import bytes_in_words
from quorate.simulation.picture import GAP, MARGIN, TOP, WIDTH, framed, legend

Row = Mapping[str, Any]
_TALL, _BETWEEN = 220.0, 84.0
_LOOKS = (0, 1)
_ASIDE = 1.3


def picture(rows: Sequence[Row], title: str, about: str) -> str:
    """Return a self-contained SVG; `about` says where the rows were measured."""
    looks = dict(zip(dict.fromkeys(row["way"] for row in rows), _LOOKS, strict=False))
    names = list(dict.fromkeys(row["operation"] for row in rows))
    wide = (WIDTH - 2 * MARGIN - GAP) / 2
    parts = []
    for place, name in enumerate(names):
        left = MARGIN + 44 + place % 2 * (wide + GAP - 10)
        foot = TOP + 20 + _TALL + place // 2 * (_TALL + _BETWEEN)
        parts.append(
            _panel([row for row in rows if row["operation"] == name], name, looks, left, left + wide - 60, foot)
        )
    foot = TOP + 20 + _TALL + (len(names) - 1) // 2 * (_TALL + _BETWEEN)
    label = f"{title}: bus bandwidth by size. {'; '.join(_greatest(rows, name) for name in names)}."
    return framed(joined([*parts, legend(looks, foot + 66)]), foot + 96, title, about, "", label)


def _greatest(rows: Sequence[Row], name: str) -> str:
    own = [row for row in rows if row["operation"] == name]
    last = max(row["size"] for row in own)
    rates = (f"{row['way']} {bytes_in_words(row['bus_bandwidth'])}/s" for row in own if row["size"] == last)
    return f"{name}: {', '.join(rates)} for {bytes_in_words(last)}"


def _panel(rows: Sequence[Row], name: str, looks: Mapping[str, int], left: float, right: float, foot: float) -> Markup:
    sizes = [row["size"] for row in rows]
    top = foot - _TALL + 40
    x = Scale(min(sizes) / _ASIDE, max(sizes) * _ASIDE, left, right, is_log=True)
    y = scale_of([row["bus_bandwidth"] for row in rows], foot, top, kind="bytes", may_be_log=True, round_ends=True)
    parts = [
        drawing.text(
            left - 40, top - 20, f"{name}: {drawing.with_unit('bus bandwidth', y)} per second", class_="axis-title"
        ),
        drawing.axis_left(y, left, right),
        _axis_of_sizes(sorted(set(sizes)), x, foot, top),
    ]
    for way, look in looks.items():
        places = [(x(row["size"]), y(row["bus_bandwidth"])) for row in rows if row["way"] == way]
        if places:
            dashes = drawing.dashes_of(look) or None
            stroke = element("path", d=drawing.path(places), class_="line", stroke_dasharray=dashes)
            marks = [drawing.marker(a, b, look, 2.6) for a, b in places]
            parts.append(drawing.group(element("title", way), stroke, *marks, class_=drawing.colour_of(look)))
    return joined(parts)


def _axis_of_sizes(sizes: Sequence[int], x: Scale, foot: float, top: float) -> Markup:
    """Return the axis: a line for each size, which is written where there is room."""
    parts, free = [], -WIDTH
    for size in sizes:
        at, words = x(size), _in_powers_of_two(size)
        parts.append(drawing.line(at, top, at, foot, class_="grid"))
        if at - drawing.text_width(words) / 2 > free:
            parts.append(drawing.text(at, foot + 16, words, class_="tick", anchor="middle"))
            free = at + drawing.text_width(words) / 2 + 6
    parts.append(drawing.line(x.begin, foot, x.end, foot, class_="axis"))
    return joined(parts)


def _in_powers_of_two(size: int) -> str:
    """`64 KiB`; with a decimal unit where the size is no multiple of 1,024."""
    for unit, bytes_of_unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_of_unit:
            return f"{size // bytes_of_unit} {unit}" if size % bytes_of_unit == 0 else bytes_in_words(size)
    return bytes_in_words(size)
