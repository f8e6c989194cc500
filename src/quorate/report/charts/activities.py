"""The parts of a step's time as areas: each activity has its own colour and pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.figures.time_use import ACTIVITIES

WORDS = {
    "communication": "communication (exposed)", "delay": "lateness (injected)", "pace": "pace (stands for compute)",
    "waiting": "waiting for others",
}  # fmt: skip
"""Words for activities whose names are not enough."""
SHORT = {"delay": "lateness"}
"""Other words for where there is room for one."""
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
        words = words_of(activity)
        wide = 28.0 + drawing.text_width(words) + 12.0
        if x > 0.0 and x + wide > width:
            x, y = 0.0, y + 20.0
        parts += [drawing.bar(x + 1, y, 18, 12, class_=f"area {class_of(activity)}")]
        parts += [drawing.text(x + 25, y + 10, words, class_="key")]
        x += wide
    return joined(parts), y + 28.0
