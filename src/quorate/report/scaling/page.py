"""The page of a training with several numbers of workers: the verdict, curves, and the parts of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorate.report.charts.activities import Spending, share_chart
from quorate.report.charts.lines import Axes, Line, line_chart
from quorate.report.charts.markup import Markup, element
from quorate.report.page import document, heading
from quorate.report.parts import (
    HALF,
    TableColumns,
    View,
    cells_of,
    chip,
    figure,
    framed,
    nothing,
    paragraphs,
    section,
    table,
)
from quorate.report.scaling.figures import Regime, ScalingRow, ScalingSummary
from quorate.report.scaling.verdict import FIGURES, REGIMES
from quorate.report.wording import (
    counted,
    number_in_words,
    numbers_alike,
    seconds_alike,
    seconds_in_words,
    share_in_words,
)

VERDICT = (
    "Workers are worth having as long as each step up brings at least half of what it could. The speed-up is the time "
    "per pass with the fewest workers over that with more, times their passes to the target over those with more."
)
CURVES = (
    "The speed-up of the time alone, and with the passes that the larger batch takes. What lies between the ideal and "
    "the first is waiting, bytes and slower computing; what lies between both is the batch."
)
TIMES = (
    "Computing is all that a worker does by itself. Waiting is what it lost to others that came later, communication "
    "what it lost to bytes that moved after the last had come."
)
LOSSES = (
    "What is lost is told as a share: of the time per pass to computing (which takes longer for each example), to "
    "waiting and to the wire, of the passes to the batch."
)
COLUMNS: TableColumns[ScalingRow] = (
    ("workers", lambda row: f"{row.workers}{', simulated' if row.is_simulated else ''}", None),
    ("batch", lambda row: nothing() if row.batch is None else f"{row.batch:,.0f}", None),
    FIGURES[0],
    FIGURES[1],
    ("time to target", lambda row: row.target_seconds, seconds_alike),
    *FIGURES[2:6],
    ("loses most to", lambda row: _loss(row), None),
    FIGURES[6],
    ("cost", lambda row: row.cost, numbers_alike),
)
Figure = Callable[[ScalingRow], float | None]


def scaling_page(summary: ScalingSummary, view: View) -> str:
    """Return the whole file. `view` is of one of its comparisons."""
    sections = [_verdict(summary, view), _curves(summary, view), _times(summary, view)]
    simulated = [row for row in summary.rows if row.is_simulated]
    chips = [chip("measured, and simulated beyond" if simulated else "measured", "good"), chip(summary.strategy)]
    if summary.target is not None:
        chips.append(chip(f"to {summary.target}"))
    if summary.price is not None:
        chips.append(chip(f"{summary.price:g} a worker and hour"))
    footer = element("footer", element("p", "Made by Quorate from the records of these runs. ", _command(summary)))
    return document(
        summary.title, heading("workers", summary.title, chips), sections, footer,
        is_virtual=view.is_virtual,
    )  # fmt: skip


def _command(summary: ScalingSummary) -> Markup:
    return element("code", " ".join(summary.command))


def _verdict(summary: ScalingSummary, view: View) -> Markup:
    lines = [element("p", summary.verdict, class_="finding"), paragraphs(*(f"Caution: {x}." for x in summary.warnings))]
    tables = [_table(summary, view, regime) for regime in _regimes(summary)]
    return section("verdict", "Verdict", VERDICT, *lines, *tables)


def _regimes(summary: ScalingSummary) -> list[Regime]:
    return list(dict.fromkeys(row.regime for row in summary.rows))


def _table(summary: ScalingSummary, view: View, regime: Regime) -> Markup:
    of_regime = [row for row in summary.rows if row.regime == regime]
    columns = [column for column in COLUMNS if column[0] != "cost" or summary.price is not None]
    note = f"A pass is {summary.pass_words}. Passes are to {summary.target or 'no target: runs left no quality'}."
    scaling = f"{regime.capitalize()} scaling, {REGIMES[regime]}"
    cells = list(zip(*cells_of([(row,) for row in of_regime], columns), strict=True))
    return framed(view, scaling, table([head for head, _, _ in columns], cells), paragraphs(note, LOSSES))


def _loss(row: ScalingRow) -> str:
    return nothing() if row.limit is None else f"{row.limit} {share_in_words(row.losses[row.limit])}"


def _curves(summary: ScalingSummary, view: View) -> Markup:
    charts = [_speedups(summary, view, regime) for regime in _regimes(summary)]
    efficiencies = [
        line
        for place, regime in enumerate(_regimes(summary))
        for line in _lines(summary, regime, f"{regime} scaling", place, lambda row: row.efficiency)
    ]
    charts.append(_chart(view, "Efficiency", "speed-up over times the workers", efficiencies))
    return section("curves", "Speed-up", CURVES, element("div", *charts, class_="figures"))


def _speedups(summary: ScalingSummary, view: View, regime: Regime) -> Markup:
    of_regime = [row for row in summary.rows if row.regime == regime]
    ideal = [(float(row.workers), row.workers / of_regime[0].workers) for row in of_regime]
    lines = [
        Line(name="ideal", look=3, curves=[ideal], is_of_runs=False),
        *_lines(summary, regime, "time per pass", 1, lambda row: row.time_speedup),
        *_lines(summary, regime, "to the target", 0, lambda row: row.speedup),
    ]
    return _chart(view, f"Speed-up, {REGIMES[regime]}", "times as fast", lines)


def _lines(summary: ScalingSummary, regime: Regime, name: str, look: int, of: Figure) -> list[Line]:
    """Return a line of measured rows; and from its last point on, with another look, one of simulated rows."""
    of_regime = [row for row in summary.rows if row.regime == regime]
    measured = _points([row for row in of_regime if not row.is_simulated], of)
    simulated = _points([row for row in of_regime if row.is_simulated], of)
    lines = [Line(name=name, look=look, curves=[measured], is_of_runs=False)] if measured else []
    if simulated:
        curve = [*measured[-1:], *simulated]
        lines.append(Line(name=f"{name}, simulated", look=look + 4, curves=[curve], is_of_runs=False))
    return lines


def _points(rows: Sequence[ScalingRow], of: Figure) -> list[tuple[float, float]]:
    return [(float(row.workers), y) for row in rows if (y := of(row)) is not None]


def _chart(view: View, caption: str, y: str, lines: Sequence[Line]) -> Markup:
    ends = [(line.name, line.curves[0][0][1], line.curves[0][-1][1]) for line in lines]
    described = " ".join(f"{name}: from {number_in_words(a)} to {number_in_words(b)}." for name, a, b in ends)
    axes = Axes(x="workers", x_kind="count", y=y)
    return figure(
        view,
        caption,
        lambda width: line_chart(lines, axes, width=width, height=300.0, label=f"Line chart: {caption}. {described}"),
        wide=HALF,
    )


def _times(summary: ScalingSummary, view: View) -> Markup:
    charts = []
    for regime in _regimes(summary):
        rows = [row for row in summary.rows if row.regime == regime and row.step]
        if rows:
            charts.append(_time(view, regime, rows))
    return section("time", "Time per step", TIMES, *charts) if charts else Markup()


def _time(view: View, regime: Regime, rows: Sequence[ScalingRow]) -> Markup:
    steps = [
        Spending(f"{counted(row.workers, 'worker')}{', simulated' if row.is_simulated else ''}", row.step)
        for row in rows
    ]
    described = " ".join(f"{spending.name}: {seconds_in_words(spending.total)}." for spending in steps)
    title = view.time("time of the mean step")
    return figure(
        view,
        f"Where the mean step went, {REGIMES[regime]}",
        lambda width: share_chart(steps, title=title, width=width, label=f"Stacked bars of the mean step. {described}"),
    )
