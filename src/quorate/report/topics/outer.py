"""Outer steps: their gains over the workers' deltas, and whether their momentum helps or overshoots."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from quorate.records.rows import Outer
from quorate.report.charts.lines import Axes, Line
from quorate.report.charts.markup import Markup, element
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import HALF, TableColumns, View, arms_table, framed, line_figure, paragraphs
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic
from quorate.report.wording import number_in_words, numbers_alike

LEAD = (
    "With outer steps, the mean delta is the gradient of an outer optimizer. The correlation is the cosine between "
    "consecutive outer gradients of a fragment. The gain is the length of the step along the outer gradient, as a "
    "multiple of the plain step; across is its length perpendicular to it."
)
MEANINGS = (
    "Medians over all outer steps. A correlation near or below 0, and more movement across than along, indicate that "
    "the outer momentum overshoots: reduce outer_momentum, or set outer_gain to measured."
)
SHOWN = 400
"""The most outer steps that are drawn: evenly over the run."""


class OuterPoint(Part):
    """The figures of one outer step."""

    seconds: float
    """Seconds of the run's training time."""
    fragment: int
    rho: float
    """The cosine of the outer gradient and the one before it, of the same fragment."""
    gain: float
    """The length along the outer gradient, as a multiple of the plain step."""
    transverse: float
    """The length across it, as a multiple of the plain step."""


class OuterSummary(Part):
    """Outer steps of all runs that count together: medians."""

    count: int
    rho: float
    gain: float
    transverse: float
    shown: tuple[OuterPoint, ...]
    """Points of the first run, at most 400."""


def outer_of(run: MeasuredRun) -> Sequence[OuterPoint] | None:
    """Return the outer steps of the lowest rank that recorded any: all have the same."""
    rows = next((rank.outers for rank in run.records.ranks if rank.outers), [])
    return outer_points(rows, run.records.training_seconds) if run.records.has_steps else None


def outer_points(rows: Sequence[Outer], seconds_at: Callable[[float], float]) -> tuple[OuterPoint, ...]:
    """Return the points of rows that have all three figures.

    `seconds_at` converts a time to seconds of the run's training.
    """
    return tuple(
        OuterPoint(
            seconds=seconds_at(row.time), fragment=row.fragment, rho=row.rho, gain=row.gain, transverse=row.transverse
        )
        for row in rows
        if row.rho is not None and row.gain is not None and row.transverse is not None
    )


def outer_summary(runs: Sequence[Sequence[OuterPoint]]) -> OuterSummary | None:
    """Return the summary of all runs of an arm together; the steps that are drawn are those of the first."""
    points = [point for run in runs for point in run]
    if not points:
        return None
    first = next(run for run in runs if run)
    stride = -(-len(first) // SHOWN)
    return OuterSummary(
        count=len(points),
        rho=statistics.median(point.rho for point in points),
        gain=statistics.median(point.gain for point in points),
        transverse=statistics.median(point.transverse for point in points),
        shown=tuple(first[::stride]),
    )


def _body(view: View, arms: Arms[OuterSummary]) -> Iterator[Markup]:
    charts = (
        _chart(view, arms, "Correlation of outer gradients", lambda point: point.rho),
        _chart(view, arms, "Gain of outer steps", lambda point: point.gain),
        _chart(view, arms, "Outer steps across the gradient", lambda point: point.transverse),
    )
    yield framed(view, "Outer steps", arms_table(arms, _COLUMNS), paragraphs(MEANINGS))
    yield element("div", *charts, class_="figures")


def _chart(view: View, arms: Arms[OuterSummary], caption: str, of: Callable[[OuterPoint], float]) -> Markup:
    lines = [
        Line(name=arm.name, look=view.looks[arm.name], curves=[[(point.seconds, of(point)) for point in summary.shown]])
        for arm, summary in arms
    ]
    ends = " ".join(f"{arm.name}: from {_ends(summary, of)}." for arm, summary in arms)
    axes = Axes(x=view.time("training time"), x_kind="seconds", y=caption.lower())
    label = f"Line chart: {caption}. {ends}"
    return line_figure(view, caption, lines, axes, label, height=260.0, wide=HALF)


def _ends(summary: OuterSummary, of: Callable[[OuterPoint], float]) -> str:
    return f"{number_in_words(of(summary.shown[0]))} to {number_in_words(of(summary.shown[-1]))}"


_COLUMNS: TableColumns[OuterSummary] = (
    ("outer steps", lambda outer: f"{outer.count:,}", None),
    ("correlation", lambda outer: outer.rho, numbers_alike),
    ("gain", lambda outer: outer.gain, numbers_alike),
    ("across", lambda outer: outer.transverse, numbers_alike),
)
TOPIC = Topic(
    name="outer",
    title="Outer steps",
    lead=LEAD,
    part=OuterSummary,
    measure=outer_of,
    summarize=outer_summary,
    body=_body,
)
