"""The parts of a step's time: each activity has its own colour and pattern, and bars of them are stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import scale_of
from quorate.report.figures.time_use import ACTIVITIES
from quorate.report.wording import Words, seconds_alike, seconds_in_words, shares_alike

NAMES = {"pace": "minimum step time"}
"""Names in legends and bars of activities that the records call otherwise."""
WORDS = {
    "communication": "communication (exposed)", "delay": "delay (injected)",
    "pace": f"{NAMES['pace']} (injected)", "waiting": "waiting for others",
}  # fmt: skip
"""Words for activities whose names are not enough."""
SHOWN = ("compute", "pace", "update", "data", "encode", "decode", "other", "delay", "communication", "waiting")
"""From left to right in bars: the work of the worker itself, the injected, and the cost of others."""
_PATTERNS: Mapping[str, tuple[int, str]] = {
    "compute": (8, ""),
    "pace": (10, "M5 3.5V6.5M3.5 5H6.5"),
    "data": (6, "M0 3H6"),
    "delay": (8, "M0 0L8 8M8 0L0 8"),
    "encode": (5, "M2.5 0V5"),
    "communication": (7, "M-2 2L2 -2M0 7L7 0M5 9L9 5"),
    "waiting": (7, "M2 2h1.8v1.8h-1.8zM5.5 5.5h1.8v1.8h-1.8zM-1.5 5.5h1.8v1.8h-1.8zM5.5 -1.5h1.8v1.8h-1.8z"),
    "decode": (5, "M0 2.5H5"),
    "update": (9, "M4.5 0V9"),
    "other": (8, "M-2 6L2 10M0 0L8 8M6 -2L10 2"),
}
"""The size of the tile of each activity and the strokes on it. SVG draws what the strokes leave of the colour."""


def patterns() -> Markup:
    """Return the tiles, once for the whole page; charts refer to them through the page's style sheet."""
    tiles = []
    for name in ACTIVITIES:
        size, strokes = _PATTERNS[name]
        ground = element("rect", width=size, height=size, class_=f"a-{name}")
        over = [element("path", d=strokes, class_="dots" if name == "waiting" else "strokes")] if strokes else []
        tiles.append(
            element("pattern", ground, *over, id=f"p-{name}", width=size, height=size, patternUnits="userSpaceOnUse")
        )
    return element("svg", element("defs", *tiles), class_="patterns", width=0, height=0, aria_hidden="true")


def class_of(activity: str) -> str:
    """Return the class that fills the area of an activity; an unknown one looks like "other"."""
    return f"p-{activity if activity in _PATTERNS else 'other'}"


def name_of(activity: str) -> str:
    """Return the name of an activity in a legend or a bar."""
    return NAMES.get(activity, activity)


def words_of(activity: str) -> str:
    """Return the words for an activity."""
    return WORDS.get(activity, activity)


def key(activities: Sequence[str], width: float, top: float) -> tuple[Markup, float]:
    """Draw swatches with names in as many rows as they need, from `top` down.

    Returns:
        The swatches, and the place below them, where the next part may begin.
    """
    parts: list[str] = []
    x, y = 0.0, top
    for activity in activities:
        name = name_of(activity)
        wide = 28.0 + drawing.text_width(name) + 12.0
        if x > 0.0 and x + wide > width:
            x, y = 0.0, y + 20.0
        parts += [drawing.bar(x + 1, y, 18, 12, class_=f"area {class_of(activity)}")]
        parts += [drawing.text(x + 25, y + 10, name, class_="key")]
        x += wide
    return joined(parts), y + 28.0


_BAR = 34.0
_ROW = 88.0
_NAMED_FROM = 0.01
"""Shares below this have no label in the chart."""


@dataclass(frozen=True)
class Spending:
    """The mean step of one side: seconds by activity."""

    name: str
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds of all parts together."""
        return sum(self.seconds.values())


def share_chart(steps: Sequence[Spending], *, title: str, width: float, label: str) -> Markup:
    """Draw bars on one scale from 0. A part too small for its label has it below, at the end of a fine line."""
    names = {name for step in steps for name, seconds in step.seconds.items() if seconds > 0.0}
    ordered = [name for name in SHOWN if name in names] + sorted(names - set(SHOWN))
    legend, top = key(ordered, width, 2.0)
    bottom = top + _ROW * len(steps)
    room = 76.0
    scale = scale_of([0.0, *(step.total for step in steps)], 1.0, width - room, kind="seconds", from_zero=True)
    seconds = seconds_alike(step.total for step in steps)
    named = [
        part / step.total for step in steps for part in step.seconds.values() if part >= _NAMED_FROM * step.total > 0
    ]
    shares = shares_alike(named)
    parts = [legend, drawing.axis_below(scale, bottom, top, title, most=4 if width < drawing.NARROW else 8)]
    for place, step in enumerate(steps):
        y = top + _ROW * place + 22.0
        parts.append(drawing.text(1, y - 6, drawing.shortened(step.name, width, 13), class_="name halo"))
        parts.append(_stack(step, ordered, scale.begin, scale(step.total), y, width, shares))
        parts.append(drawing.text(scale(step.total) + 8, y + _BAR / 2 + 5, seconds(step.total), class_="total"))
    return drawing.svg(width, bottom + 42.0, *parts, label=label)


def _stack(
    step: Spending, ordered: Sequence[str], begin: float, end: float, y: float, width: float, shares: Words
) -> Markup:
    parts: list[str] = []
    small: list[tuple[float, str, float]] = []
    at = begin
    for name in ordered:
        seconds = step.seconds.get(name, 0.0)
        if seconds <= 0.0 or step.total <= 0.0:
            continue
        wide = (end - begin) * seconds / step.total
        share = shares(seconds / step.total)
        hint = f"{step.name}: {words_of(name)} {seconds_in_words(seconds)}, {share}"
        parts.append(drawing.bar(at, y, wide, _BAR, class_=f"area {class_of(name)}", hint=hint))
        words = f"{name_of(name)} {share}"
        if drawing.text_width(words, 12) + 14 <= wide:
            back = drawing.text_width(words, 12) + 10
            parts.append(
                element("rect", x=at + wide / 2 - back / 2, y=y + 8, width=back, height=18, rx=3, class_="plate")
            )
            parts.append(drawing.text(at + wide / 2, y + 21, words, class_="inside", anchor="middle"))
        elif seconds / step.total >= _NAMED_FROM:
            small.append((at + wide / 2, words, seconds))
        at += wide
    return joined([*parts, _labels_below(small, y + _BAR, width)])


def _labels_below(labels: Sequence[tuple[float, str, float]], y: float, width: float) -> Markup:
    """Draw labels in one row, none over another; without room for all, the smallest parts have none."""
    kept = list(labels)
    while kept and sum(_wide(words) for _, words, _ in kept) > width:
        kept.remove(min(kept, key=lambda label: label[2]))
    places = drawing.spread([middle for middle, _, _ in kept], [_wide(words) for _, words, _ in kept], 0.0, width)
    parts: list[str] = []
    for (middle, words, _), place in zip(kept, places, strict=True):
        parts.append(element("path", d=drawing.path([(middle, y), (place, y + 9)]), class_="leader"))
        parts.append(drawing.text(place, y + 20, words, class_="small halo", anchor="middle"))
    return joined(parts)


def _wide(words: str) -> float:
    return drawing.text_width(words, 11.5) + 10.0
