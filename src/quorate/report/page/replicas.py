"""Replicas that differ: how far they were from each other, and how good single ones were beside their mean."""

from __future__ import annotations

from quorate.report.charts.bands import finite
from quorate.report.charts.lines import Axes, Line, line_chart
from quorate.report.charts.markup import Markup, element
from quorate.report.page.parts import HALF, View, figure, figure_in_words, framed, missing, nothing, section, table
from quorate.report.schema import ArmSummary, Curve, Estimate, Replicas

LEAD = (
    "Where workers agree with neighbours only, or only now and then, each has a replica of its own. Quality is that of "
    "the mean of all replicas, unless it says otherwise; single replicas are as good only as far as they are near to "
    "it. The distance is the root mean square over the replicas, as a share of the norm of their mean."
)
Arms = list[tuple[ArmSummary, Replicas]]


def replicas(view: View) -> Markup:
    """Return the section on distances between replicas, if they differ in some arm."""
    arms = [(arm, arm.replicas) for arm in view.summary.arms if arm.replicas is not None]
    if not arms:
        return Markup()
    absent = view.left_out(
        (arm for arm in view.summary.arms if arm.replicas is None), "replicas are equal at every step"
    )
    charts = [_chart(view, arms, "How far replicas were from their mean", "distance / norm", is_distance=True)]
    if any(summary.quality for _, summary in arms) and view.summary.metric is not None:
        charts.append(_chart(view, arms, "How good single replicas were", view.summary.metric.name, is_distance=False))
    grid = element("div", *charts, class_="figures")
    return section("replicas", "Replicas", LEAD, _table(view, arms), grid, missing(absent))


def _table(view: View, arms: Arms) -> Markup:
    heads = ["strategy", "distance at the end", "quality of the mean", "mean quality of replicas"]
    rows = [
        [arm.name, *map(_cell, (summary.last_distance, arm.quality, summary.last_quality))] for arm, summary in arms
    ]
    return framed(view, "Replicas at the end", table(heads, rows))


def _cell(estimate: Estimate | None) -> Markup:
    if estimate is None:
        return nothing()
    return element("span", figure_in_words(estimate.mean), class_="mean", data_value=repr(estimate.mean))


def _chart(view: View, arms: Arms, caption: str, y: str, *, is_distance: bool) -> Markup:
    def curves(summary: Replicas) -> tuple[Curve, ...]:
        return summary.distance if is_distance else summary.quality

    lines = [
        Line(name=arm.name, look=view.looks[arm.name], curves=[finite(c.seconds, c.quality) for c in curves(summary)])
        for arm, summary in arms
        if curves(summary)
    ]
    ends = [(line.name, curve[-1][1]) for line in lines for curve in line.curves[:1] if curve]
    end_words = " ".join(f"{name} ends at {figure_in_words(value)}." for name, value in ends)
    axes = Axes(x=view.time("training time"), x_kind="seconds", y=y)
    return figure(
        view, caption,
        lambda width: line_chart(lines, axes, width=width, height=300.0, label=f"Line chart: {caption}. {end_words}"),
        wide=HALF,
    )  # fmt: skip
