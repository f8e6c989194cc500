"""Outer steps: their gains over the workers' deltas, and whether their momentum helps or overshoots."""

from __future__ import annotations

from collections.abc import Callable

from quorate.report.charts.lines import Axes, Line, line_chart
from quorate.report.charts.markup import Markup, element
from quorate.report.page.parts import HALF, View, alike, figure, framed, paragraphs, section, table
from quorate.report.schema import ArmSummary
from quorate.report.schema_parts import OuterPoint, OuterSummary
from quorate.report.wording import number_in_words, numbers_alike

LEAD = (
    "Under outer steps the mean of how far the workers went is the gradient of an outer optimizer. The correlation is "
    "the cosine of two of these that follow each other, of one fragment; the gain is how many times the plain step a "
    "step went along its own; across is how far it went beside it, in plain steps."
)
MEANINGS = (
    "Medians over all outer steps. A correlation near or below 0, and more across than along, say that the outer "
    "momentum overshoots: set outer_momentum lower, or outer_gain to measured."
)
Arms = list[tuple[ArmSummary, OuterSummary]]


def outer(view: View) -> Markup:
    """Return the section, if some arm has outer steps."""
    arms = [(arm, arm.outer) for arm in view.summary.arms if arm.outer is not None]
    if not arms:
        return Markup()
    charts = (
        _chart(view, arms, "Correlation of outer gradients", lambda point: point.rho),
        _chart(view, arms, "Gain of outer steps", lambda point: point.gain),
        _chart(view, arms, "How far they went across", lambda point: point.transverse),
    )
    return section("outer", "Outer steps", LEAD, _table(view, arms), element("div", *charts, class_="figures"))


def _table(view: View, arms: Arms) -> Markup:
    heads = ["strategy", "outer steps", "correlation", "gain", "across"]
    figures = alike([[summary.rho, summary.gain, summary.transverse] for _, summary in arms], [numbers_alike] * 3)
    rows = [[arm.name, f"{summary.count:,}", *row] for (arm, summary), row in zip(arms, figures, strict=True)]
    return framed(view, "What outer steps were like", table(heads, rows), paragraphs(MEANINGS))


def _chart(view: View, arms: Arms, caption: str, of: Callable[[OuterPoint], float]) -> Markup:
    lines = [
        Line(name=arm.name, look=view.looks[arm.name], curves=[[(point.seconds, of(point)) for point in summary.shown]])
        for arm, summary in arms
    ]
    ends = " ".join(f"{arm.name}: from {_ends(summary, of)}." for arm, summary in arms)
    axes = Axes(x=view.time("training time"), x_kind="seconds", y=caption.lower())
    return figure(
        view,
        caption,
        lambda width: line_chart(lines, axes, width=width, height=260.0, label=f"Line chart: {caption}. {ends}"),
        wide=HALF,
    )


def _ends(summary: OuterSummary, of: Callable[[OuterPoint], float]) -> str:
    return f"{number_in_words(of(summary.shown[0]))} to {number_in_words(of(summary.shown[-1]))}"
