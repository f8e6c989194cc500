"""Merges of learners over time: a lane for each rank, a dot for each merge it was in, as large as its weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined, number
from quorate.report.charts.scales import scale_of

_ROW = 22.0
_SIZES = (3.0, 5.0, 7.0, 9.0, 11.0, 14.0)
"""Widths of dots, for weights from none to all."""


@dataclass(frozen=True)
class MergeDots:
    """One merge: its time, and its members as (lane, share of the weight, is it late)."""

    time: float
    members: Sequence[tuple[int, float, bool]]


def merge_chart(lanes: Sequence[str], merges: Sequence[MergeDots], *, title: str, width: float, label: str) -> Markup:
    """Draw dots whose areas are as weights; the dot of a late contribution is hollow."""
    top = 30.0
    left = min(110.0, max(drawing.text_width(name) for name in lanes) + 12.0)
    foot = top + _ROW * len(lanes)
    times = [merge.time for merge in merges]
    x = scale_of([min(times), max(times)], left + 8.0, width - 12.0, kind="seconds")
    parts: list[str] = [_key(), drawing.axis_below(x, foot, top, title, most=8)]
    for place, name in enumerate(lanes):
        y = top + _ROW * (place + 0.5)
        parts.append(drawing.text(left - 8, y + 4, name, class_="row-name", anchor="end"))
    dots: dict[tuple[float, bool], list[str]] = defaultdict(list)
    for merge in merges:
        for lane, share, is_late in merge.members:
            dots[_size(share), is_late].append(f"M{x(merge.time):.1f} {number(top + _ROW * (lane + 0.5))}h0")
    parts += [_dots("".join(d), size, is_late=is_late) for (size, is_late), d in sorted(dots.items(), reverse=True)]
    return drawing.svg(width, foot + 42.0, *parts, label=label)


def _size(share: float) -> float:
    return _SIZES[min(len(_SIZES) - 1, int(share**0.5 * len(_SIZES)))]


def _dots(d: str, size: float, *, is_late: bool) -> Markup:
    kind = "late" if is_late else "fresh"
    return joined(
        element("path", d=d, class_=f"merge-{part} {kind}", stroke_width=number(wide))
        for part, wide in (("rim", size + 1.6), ("dot", size - 1.0 if is_late else size))
    )


def _key() -> Markup:
    parts: list[str] = []
    x = 8.0
    for words, size, is_late in (
        ("full weight", _SIZES[-1], False),
        ("little", _SIZES[0], False),
        ("late", 9.0, True),
    ):
        parts.append(_dots(f"M{number(x)} 12h0", size, is_late=is_late))
        parts.append(drawing.text(x + 12.0, 16.0, words, class_="key"))
        x += 34.0 + drawing.text_width(words)
    return joined(parts)
