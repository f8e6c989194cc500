"""Replicas that differ: how far they were from each other, and how good single ones were beside their mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quorate.report.charts.lines import Axes, Line, finite
from quorate.report.charts.markup import Markup, element
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import HALF, View, figure_in_words, framed, line_figure, missing, nothing, table
from quorate.report.reading.run import RunRecords
from quorate.report.schema import Estimate, Part
from quorate.report.topic import Arms, Topic
from quorate.report.topics.quality import Curve, curve_of, curve_through, points_of

LEAD = (
    "If workers agree only with neighbours, or only from time to time, each has a different replica. Quality is that "
    "of the mean of all replicas unless stated otherwise; a single replica is as good only if it is close to the "
    "mean. The distance is the root mean square over the replicas, as a share of the norm of their mean."
)


class Replicas(Part):
    """Replicas that differ between steps, where an evaluation is of their mean."""

    distance: tuple[Curve, ...]
    """By run, at every evaluation: the root mean square distance of the replicas from their mean, as a share of the
    norm of the mean; `quality` holds it."""
    last_distance: Estimate
    """At the last evaluation."""
    quality: tuple[Curve, ...]
    """By run, the mean quality of single replicas; empty where it was not measured."""
    last_quality: Estimate | None
    """At the last evaluation."""


@dataclass(frozen=True)
class ReplicaFigures:
    """The replicas of one run."""

    distance: Curve
    """The distance between them, in place of the quality."""
    quality: Curve | None
    """The mean quality of single replicas, if it was measured beside that of their mean."""
    metric: str | None
    """The name of the quality."""


def replicas_of(run: MeasuredRun) -> ReplicaFigures | None:
    """Return the replicas of a run; None if they do not differ."""
    points = distances_of(run.records)
    if not points:
        return None
    quality = None if run.metric is None else curve_of(run.records, f"replica_{run.metric}", run.seed, run.amounts)
    return ReplicaFigures(curve_through(run.records, run.seed, points, run.amounts), quality, run.metric)


def distances_of(run: RunRecords) -> list[tuple[float, float, float]]:
    """Return points (time, seconds of training, distance), one for each evaluation of the first optimizer.

    The distance is the root mean square over the replicas, as a share of the norm of their mean (consensus distance).
    Evaluations without a row of every rank are left out.
    """
    ranks = [rank for rank in run.ranks if rank.steps]
    first = ranks[0].distributed.get("optimizer") if ranks else None
    columns = [[row for row in rank.distances if first is None or row.optimizer == first] for rank in ranks]
    points = []
    for rows in zip(*columns, strict=False) if len(ranks) == run.size else ():
        norm = rows[0].norm
        if norm > 0.0:
            far = math.sqrt(sum(row.distance**2 for row in rows) / len(rows)) / norm
            points.append((rows[0].time, ranks[0].training_seconds(rows[0].time, run.begin), far))
    return points


def _summarized(runs: Sequence[ReplicaFigures]) -> Replicas:
    qualities = [run.quality for run in runs if run.quality is not None]
    return Replicas(
        distance=tuple(run.distance for run in runs),
        last_distance=Estimate.of([run.distance.quality[-1] for run in runs]),
        quality=tuple(qualities),
        last_quality=Estimate.of_qualities((curve.quality[-1] for curve in qualities), runs[0].metric),
    )


def _body(view: View, arms: Arms[Replicas]) -> Iterator[Markup]:
    charts = [_chart(view, arms, "Distance of replicas from their mean", "distance / norm", is_distance=True)]
    if any(summary.quality for _, summary in arms) and view.summary.metric is not None:
        charts.append(_chart(view, arms, "Quality of single replicas", view.summary.metric.name, is_distance=False))
    yield _table(view, arms)
    yield element("div", *charts, class_="figures")
    yield missing(view.left_out([arm.name for arm, _ in arms], "replicas are always equal"))


def _table(view: View, arms: Arms[Replicas]) -> Markup:
    heads = ["strategy", "distance at the end", "quality of the mean", "mean quality of replicas"]
    rows = [
        [arm.name, *map(_cell, (summary.last_distance, arm.quality, summary.last_quality))] for arm, summary in arms
    ]
    return framed(view, "Replicas at the end", table(heads, rows))


def _cell(estimate: Estimate | None) -> Markup:
    if estimate is None:
        return nothing()
    return element("span", figure_in_words(estimate.mean), class_="mean", data_value=repr(estimate.mean))


def _chart(view: View, arms: Arms[Replicas], caption: str, y: str, *, is_distance: bool) -> Markup:
    def curves(summary: Replicas) -> tuple[Curve, ...]:
        return summary.distance if is_distance else summary.quality

    lines = [
        Line(name=arm.name, look=view.looks[arm.name], curves=[finite(c.seconds, c.quality) for c in curves(summary)])
        for arm, summary in arms
        if curves(summary)
    ]
    end_words = " ".join(f"{line.name} ends at {figure_in_words(line.end)}." for line in lines if any(line.curves))
    axes = Axes(x=view.time("training time"), x_kind="seconds", y=y)
    return line_figure(view, caption, lines, axes, f"Line chart: {caption}. {end_words}", wide=HALF)


TOPIC = Topic(
    name="replicas",
    title="Replicas",
    lead=LEAD,
    part=Replicas,
    measure=replicas_of,
    summarize=_summarized,
    body=_body,
    data={
        "distances": ("seed seconds examples bytes distance", lambda replicas: points_of(replicas.distance)),
        "replica_curves": ("seed seconds examples bytes quality", lambda replicas: points_of(replicas.quality)),
    },
)
