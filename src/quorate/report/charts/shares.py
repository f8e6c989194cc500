"""The parts of a step's time: stacked bars from 0, one for each side of the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quorate.report.charts import activities, drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import scale_of
from quorate.report.wording import Words, seconds_alike, seconds_in_words, shares_alike

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
    ordered = [name for name in activities.SHOWN if name in names] + sorted(names - set(activities.SHOWN))
    legend, top = activities.key(ordered, width, 2.0)
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
        hint = f"{step.name}: {activities.words_of(name)} {seconds_in_words(seconds)}, {share}"
        parts.append(drawing.bar(at, y, wide, _BAR, class_=f"area {activities.class_of(name)}", hint=hint))
        words = f"{activities.SHORT.get(name, name)} {share}"
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
