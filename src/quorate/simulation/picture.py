"""The picture of a simulation: the results of each strategy by the number of workers, or as bars for one number.

All simulated results are dashed, and labelled so; recorded ones are full marks. Nothing depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Kind, Scale, scale_of
from quorate.report.wording import number_in_words, share_in_words
from quorate.simulation.grid import Row

WIDTH = 1080.0
SAID = "dashed: simulated, not measured"
MARGIN, TOP, PANEL, GAP = 26.0, 92.0, 330.0, 86.0
_BAR = 20.0
ASIDE = 1.25
"""The factor by which the axis of workers extends beyond the least and the greatest number."""
_DASHED = tuple(look for look in range(1, 40) if drawing.dashes_of(look))
"""Looks with dashed lines, all different."""


def picture(rows: Sequence[Row], title: str, about: str = "") -> str:
    """Return a self-contained SVG: steps per second and share of the no-wait ideal; `about` states the assumptions."""
    looks = looks_of([_name(row, rows) for row in rows if not row.is_recorded])
    by_workers = len({row.workers for row in rows}) > 1
    body, height = (_lines if by_workers else _bars)(rows, looks)
    has_recorded = any(row.is_recorded for row in rows)
    said = SAID + ("; full mark: recorded" if has_recorded else "")
    return framed(body, height, title, about, said, _label(rows, title))


def looks_of(names: Sequence[str]) -> dict[str, int]:
    """Return a look for each of these names; all are dashed."""
    return {name: _DASHED[place % len(_DASHED)] for place, name in enumerate(dict.fromkeys(names))}


def framed(body: Markup, height: float, title: str, about: str, said: str, label: str) -> str:
    """Return the whole picture: `body` in a dashed frame, with `said` on the badge; `label` is for screen readers.

    Without `said` there is neither frame nor badge.
    """
    badge = drawing.text_width(said, 12.5) + 38 if said else 0.0
    rest = WIDTH - 2 * MARGIN - badge
    head = [
        drawing.text(MARGIN, 36, drawing.shortened(title, WIDTH - 2 * MARGIN, 17), class_="title"),
        drawing.text(MARGIN + badge, 64.5, drawing.shortened(about, rest, 12), class_="small"),
    ]
    if said:
        head += [
            element("rect", x=MARGIN, y=48, width=badge - 16, height=24, rx=12, class_="badge"),
            drawing.text(MARGIN + 11, 64.5, said, class_="badge-words"),
            element("rect", x=5, y=5, width=WIDTH - 10, height=height - 10, rx=8, class_="simulated"),
        ]
    style = element("style", Markup(_style()))
    return element(
        "svg",
        style,
        element("rect", x=0, y=0, width=WIDTH, height=height, class_="paper"),
        *head,
        body,
        xmlns="http://www.w3.org/2000/svg",
        class_="chart",
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        width=WIDTH,
        height=height,
        role="img",
        aria_label=label,
    )


def _style() -> str:
    """Return the colours of reports, and styles of this picture only."""
    assets = files("quorate.report").joinpath("assets")
    colours = assets.joinpath("page.css").read_text(encoding="utf-8").partition("* { box-sizing")[0]
    charts = assets.joinpath("charts.css").read_text(encoding="utf-8")
    own = (
        ".paper { fill: var(--card); } .chart .title { font-size: 17px; font-weight: 600; fill: var(--ink); }"
        ".simulated { fill: none; stroke: var(--warn); stroke-width: 1.5; stroke-dasharray: 7 5; }"
        ".badge { fill: var(--warn-wash); stroke: var(--warn); stroke-dasharray: 4 3; }"
        ".chart .badge-words { font-size: 12.5px; fill: var(--warn); }"
        ".outline { fill: var(--c); fill-opacity: 0.16; stroke: var(--c); stroke-width: 1.8; }"
        ".solid { fill: var(--c); stroke: var(--c); }"
    )
    return colours + charts + own


def _name(row: Row, rows: Sequence[Row]) -> str:
    """Return the strategy, with what distinguishes the rows."""
    parts = [row.strategy]
    if len({other.imbalance for other in rows if not other.is_recorded}) > 1:
        parts.append(row.imbalance or "nobody late")
    if len({other.network for other in rows if not other.is_recorded}) > 1:
        parts.append(row.network)
    return ", ".join(parts)


_Figure = Callable[[Row], float]


def _lines(rows: Sequence[Row], looks: dict[str, int]) -> tuple[Markup, float]:
    """Return two charts side by side, with the names below."""
    wide = (WIDTH - 2 * MARGIN - GAP) / 2
    foot = TOP + PANEL
    panels = (
        ("steps per second, all workers", "count", lambda row: row.figures.steps_per_second),
        ("share of the no-wait ideal", "plain", lambda row: row.figures.no_wait_share),
    )
    parts: list[str] = []
    for place, (title, kind, figure) in enumerate(panels):
        left = MARGIN + 44 + place * (wide + GAP - 10)
        parts.append(_panel(rows, looks, title, kind, figure, left, left + wide - 60, foot))  # type: ignore[arg-type]
    return joined([*parts, legend(looks, foot + 70)]), foot + 86 + 22 * (-(-len(looks) // 3))


def legend(looks: dict[str, int], top: float) -> Markup:
    """Return the names, three in a row, each with its line."""
    parts = []
    for place, (name, look) in enumerate(looks.items()):
        x, y = MARGIN + 10 + (place % 3) * (WIDTH - 2 * MARGIN) / 3, top + 22 * (place // 3)
        piece = element("path", d=f"M{x} {y - 4}h44", class_="line", stroke_dasharray=drawing.dashes_of(look))
        words = drawing.text(x + 54, y, drawing.shortened(name, 270, 13), class_="name")
        mark = drawing.marker(x + 22, y - 4, look)
        parts.append(drawing.group(piece, mark, words, class_=drawing.colour_of(look)))
    return joined(parts)


def _panel(
    rows: Sequence[Row],
    looks: dict[str, int],
    title: str,
    kind: Kind,
    figure: _Figure,
    left: float,
    right: float,
    foot: float,
) -> Markup:
    counts = sorted({row.workers for row in rows})
    x = Scale(counts[0] / ASIDE, counts[-1] * ASIDE, left, right, is_log=True)
    top = TOP + 30
    values = [figure(row) for row in rows]
    is_share = kind == "plain"
    y = scale_of([0.0, 1.0, *values] if is_share else values, foot, top, kind=kind, may_be_log=not is_share,
                 from_zero=is_share, round_ends=True)  # fmt: skip
    parts = [
        drawing.text(left - 40, TOP + 12, drawing.with_unit(title, y), class_="axis-title"),
        drawing.axis_left(y, left, right),
        axis_of_workers(counts, x, foot, top),
        *(_recorded(x, y, row, figure) for row in rows if row.is_recorded),
    ]
    for name, look in looks.items():
        own = [row for row in rows if not row.is_recorded and _name(row, rows) == name]
        parts.append(line_of([(x(row.workers), y(figure(row))) for row in own], name, look))
    return joined(parts)


def axis_of_workers(counts: Sequence[int], x: Scale, foot: float, top: float) -> Markup:
    """Return the axis of workers: a line for each simulated number, which is written where there is room."""
    parts, free = [], -WIDTH
    for count in counts:
        at, words = x(count), f"{count:,}"
        parts.append(drawing.line(at, top, at, foot, class_="grid"))
        if at - drawing.text_width(words) / 2 > free:
            parts.append(drawing.text(at, foot + 16, words, class_="tick", anchor="middle"))
            free = at + drawing.text_width(words) / 2 + 6
    parts.append(drawing.line(x.begin, foot, x.end, foot, class_="axis"))
    parts.append(drawing.text(x.end, foot + 34, "workers (logarithmic)", class_="axis-title", anchor="end"))
    return joined(parts)


def line_of(places: Sequence[tuple[float, float]], name: str, look: int) -> Markup:
    """Return one simulated line, with its marks."""
    stroke = element("path", d=drawing.path(places), class_="line", stroke_dasharray=drawing.dashes_of(look))
    marks = [drawing.marker(a, b, look) for a, b in places]
    return drawing.group(element("title", f"{name}, simulated"), stroke, *marks, class_=drawing.colour_of(look))


def _recorded(x: Scale, y: Scale, row: Row, figure: _Figure) -> Markup:
    a, b = x(row.workers), y(figure(row))
    mark = element("circle", cx=a, cy=b, r=8, class_="solid")
    return drawing.group(element("title", f"{row.strategy}, recorded"), mark, class_=drawing.colour_of(0))


def _bars(rows: Sequence[Row], looks: dict[str, int]) -> tuple[Markup, float]:
    """Return one bar for each row: the share of the no-wait ideal, followed by steps per second."""
    left, right, top = MARGIN, WIDTH - 330.0, TOP + 24
    tall = 52.0
    x = Scale(0.0, max(1.0, *(row.figures.no_wait_share for row in rows)), left, right)
    foot = top + tall * len(rows)
    parts = [
        drawing.text(left, TOP + 8, "share of the no-wait ideal", class_="axis-title"),
        drawing.axis_below(x, foot, top - 8, ""),
    ]
    for place, row in enumerate(rows):
        y = top + tall * place
        name = f"{row.strategy} (recorded)" if row.is_recorded else _name(row, rows)
        look = 0 if row.is_recorded else looks[name]
        said = (
            f"{share_in_words(row.figures.no_wait_share)}, {number_in_words(row.figures.steps_per_second)} steps/s"
            f"{' measured' if row.is_recorded else ' simulated'}"
        )
        dashes = None if row.is_recorded else drawing.dashes_of(look)
        kind = "solid" if row.is_recorded else "outline"
        wide = max(1.0, x(row.figures.no_wait_share) - left)
        bar = element("rect", x=left, y=y + 18, width=wide, height=_BAR, class_=kind, stroke_dasharray=dashes)
        words = drawing.text(left + wide + 10, y + 33, said, class_="small")
        names = drawing.text(left, y + 12, drawing.shortened(name, right, 13), class_="name halo")
        parts.append(drawing.group(names, bar, words, class_=drawing.colour_of(look)))
    return joined(parts), foot + 52


def _label(rows: Sequence[Row], title: str) -> str:
    figures = [
        f"{row.strategy} with {row.workers} workers {number_in_words(row.figures.steps_per_second)} steps per second, "
        f"{share_in_words(row.figures.no_wait_share)} of the no-wait ideal"
        for row in rows[:12]
    ]
    return f"{title}. Simulated: {'; '.join(figures)}."
