"""The picture of simulated failures: goodput and uptime over the number of workers, or a bar for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale
from quorate.report.wording import counted, share_in_words
from quorate.simulation.failing.grid import FailingRow
from quorate.simulation.picture import (
    ASIDE,
    GAP,
    MARGIN,
    PANEL,
    SAID,
    TOP,
    WIDTH,
    axis_of_workers,
    framed,
    legend,
    line_of,
    looks_of,
)

_TALL, _BAR = 52.0, 20.0


def picture(rows: Sequence[FailingRow], title: str, about: str = "") -> str:
    """Return a self-contained SVG; `about` states the assumptions."""
    looks = looks_of([name_of(row, rows) for row in rows])
    drawn = _lines if len({row.workers for row in rows}) > 1 else _bars
    body, height = drawn(rows, looks)
    shares = [f"{_named(row, rows)} {share_in_words(row.goodput.goodput)}" for row in rows[:12]]
    return framed(body, height, title, about, SAID, f"{title}. Goodput, simulated: {'; '.join(shares)}.")


def name_of(row: FailingRow, rows: Sequence[FailingRow]) -> str:
    """Return the strategy, with what distinguishes lines."""
    parts = [row.strategy]
    several = len({other.learners for other in rows if other.strategy == row.strategy}) > 1
    if several or (row.learners > 1 and len({other.learners for other in rows}) > 1):
        parts.append(counted(row.learners, "learner"))
    if len({other.network for other in rows}) > 1:
        parts.append(row.network or "")
    return ", ".join(parts)


def _named(row: FailingRow, rows: Sequence[FailingRow]) -> str:
    return f"{name_of(row, rows)} with {row.workers:,} workers"


def _lines(rows: Sequence[FailingRow], looks: dict[str, int]) -> tuple[Markup, float]:
    wide, foot = (WIDTH - 2 * MARGIN - GAP) / 2, TOP + PANEL
    panels: tuple[tuple[str, Callable[[FailingRow], float]], ...] = (
        ("goodput: useful steps, of those possible", lambda row: row.goodput.goodput),
        ("uptime: share of time in which learners train", lambda row: row.goodput.uptime),
    )
    parts: list[Markup] = []
    for place, (title, figure) in enumerate(panels):
        left = MARGIN + 44 + place * (wide + GAP - 10)
        parts.append(_panel(rows, looks, title, figure, left, left + wide - 60, foot))
    return joined([*parts, legend(looks, foot + 70)]), foot + 86 + 22 * (-(-len(looks) // 3))


def _panel(
    rows: Sequence[FailingRow],
    looks: dict[str, int],
    title: str,
    figure: Callable[[FailingRow], float],
    left: float,
    right: float,
    foot: float,
) -> Markup:
    counts = sorted({row.workers for row in rows})
    x = Scale(counts[0] / ASIDE, counts[-1] * ASIDE, left, right, is_log=True)
    y = Scale(0.0, 1.0, foot, TOP + 30)
    parts = [
        drawing.text(left - 40, TOP + 12, title, class_="axis-title"),
        drawing.axis_left(y, left, right),
        axis_of_workers(counts, x, foot, TOP + 30),
    ]
    for name, look in looks.items():
        own = sorted((row.workers, figure(row)) for row in rows if name_of(row, rows) == name)
        parts.append(line_of([(x(workers), y(value)) for workers, value in own], name, look))
    return joined(parts)


def _bars(rows: Sequence[FailingRow], looks: dict[str, int]) -> tuple[Markup, float]:
    left, right, top = MARGIN, WIDTH - 250.0, TOP + 24
    x = Scale(0.0, 1.0, left, right)
    foot = top + _TALL * len(rows)
    parts = [
        drawing.text(left, TOP + 8, "goodput: useful steps, of those possible", class_="axis-title"),
        drawing.axis_below(x, foot, top - 8, ""),
    ]
    for place, row in enumerate(rows):
        y, name = top + _TALL * place, name_of(row, rows)
        look, goodput = looks[name], row.goodput
        said = f"{share_in_words(goodput.goodput)}, uptime {share_in_words(goodput.uptime)}, simulated"
        wide = max(1.0, x(goodput.goodput) - left)
        dashes = drawing.dashes_of(look)
        bar = element("rect", x=left, y=y + 18, width=wide, height=_BAR, class_="outline", stroke_dasharray=dashes)
        words = drawing.text(left + wide + 10, y + 33, said, class_="small")
        names = drawing.text(left, y + 12, drawing.shortened(name, right, 13), class_="name halo")
        parts.append(drawing.group(names, bar, words, class_=drawing.colour_of(look)))
    return joined(parts), foot + 52
