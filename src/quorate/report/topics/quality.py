"""The quality of the model, and the training loss, against time, examples and bytes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from quorate.report.charts.lines import Axes, Line, Points, finite, line_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Kind
from quorate.report.figures.run import MeasuredRun
from quorate.report.figures.throughput import Amounts
from quorate.report.parts import View, figure, figure_in_words, folded, missing, paragraphs
from quorate.report.reading.planned import Planned
from quorate.report.reading.run import RunRecords
from quorate.report.schema import Part
from quorate.report.topic import Arms, Row, Topic

LEAD = "Lines are means over the seeds; bands range from the lowest seed to the highest."
EXPLAINED = "A line that ends early belongs to an arm that finished early. "
MARKED = "Marks on the axis are mean times to the target, over the runs that reached it. "
POINTS = 200
"""The most points of a curve of losses."""
DIGITS = 8
"""Significant digits of a quality or a loss."""


class Curve(Part):
    """Quality over the course of one run, at every evaluation; equally long lists."""

    seed: int
    seconds: tuple[float, ...]
    examples: tuple[int, ...]
    """Examples of all workers together; empty if they were not counted."""
    bytes: tuple[int, ...]
    """Sent by all workers together."""
    quality: tuple[float, ...]


class Curves(Part):
    """The curves of an arm."""

    curves: tuple[Curve, ...] = ()
    losses: tuple[Curve, ...] = ()
    """The training loss (mean over ranks and neighbouring steps, at most 200 points); `quality` holds the loss."""


def curves_of(run: MeasuredRun) -> Curves:
    """Return the quality at every evaluation, and the training loss; each has at most one curve."""
    records, seed = run.records, run.seed
    quality = None if run.metric is None else curve_of(records, run.metric, seed, run.amounts)
    loss = losses_of(records, seed, run.amounts)
    return Curves(curves=() if quality is None else (quality,), losses=() if loss is None else (loss,))


def curve_of(run: RunRecords, metric: str, seed: int, amounts: Amounts | None = None) -> Curve | None:
    """Return the quality at every evaluation, as rank 0 logged it under the metric's name; None if it never did.

    Seconds are since rank 0 began its first step, without its evaluations. Values that are not finite are left out.
    """
    first = next((rank for rank in run.ranks if rank.rank == 0), None)
    if first is None or not first.steps:
        return None
    points = [(log.time, log.values[metric]) for log in first.logs if is_number(log.values.get(metric))]
    if not points:
        return None
    return curve_through(run, seed, [(time, first.training_seconds(time, run.begin), y) for time, y in points], amounts)


def losses_of(run: RunRecords, seed: int, amounts: Amounts | None = None) -> Curve | None:
    """Return the training loss, mean over ranks and neighbouring steps, in at most `POINTS` points; None if unknown.

    A loss counts by the examples of its step. A last point of less than half as many is part of the one before it: the
    batches that end an epoch may have one example.
    """
    rows = sorted(
        (rank.training_seconds(step.end, run.begin), step.end, step.loss, step.examples or 1)
        for rank in run.ranks
        for step in rank.steps
        if is_number(step.loss)
    )
    if not rows:
        return None
    ranks = sum(bool(rank.steps) for rank in run.ranks)
    width = -(-len(rows) // (POINTS * ranks)) * ranks
    parts = [rows[begin : begin + width] for begin in range(0, len(rows), width)]
    counts = [sum(count for *_, count in part) for part in parts]
    if len(parts) > 1 and 2 * counts[-1] < counts[-2]:
        last = parts.pop()
        parts[-1] += last
    points = [(part[-1][1], part[-1][0], _mean_loss(part)) for part in parts]
    return curve_through(run, seed, points, amounts)


def _mean_loss(rows: Sequence[tuple[float, float, float | None, int]]) -> float:
    losses, counts = [loss for _, _, loss, _ in rows if loss is not None], [count for *_, count in rows]
    return statistics.fmean(losses, counts)


def curve_through(
    run: RunRecords, seed: int, points: Sequence[tuple[float, float, float]], amounts: Amounts | None
) -> Curve:
    """Return the curve through points (time, seconds of training, value)."""
    amounts = amounts or Amounts.of(run)
    examples = [amounts.examples_at(time) for time, _, _ in points]
    return Curve(
        seed=seed,
        seconds=tuple(round(seconds, 6) for _, seconds, _ in points),
        examples=tuple(count for count in examples if count is not None),
        bytes=tuple(amounts.bytes_at(time) for time, _, _ in points),
        quality=tuple(float(f"{value:.{DIGITS}g}") for _, _, value in points),
    )


def is_number(value: object) -> bool:
    """Return whether a value can be drawn: a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def final_quality(run: RunRecords, metric: str) -> float | None:
    """Return the quality at the last evaluation; None if there was none, or it was not finite."""
    values = [log.values[metric] for rank in run.ranks if rank.rank == 0 for log in rank.logs if metric in log.values]
    return float(values[-1]) if values and is_number(values[-1]) else None


def time_to(target: float, curve: Curve, *, higher_is_better: bool) -> float | None:
    """Return the seconds of training until the first evaluation that meets the target; None if none does."""
    for seconds, quality in zip(curve.seconds, curve.quality, strict=True):
        if quality >= target if higher_is_better else quality <= target:
            return seconds
    return None


def examples_to(target: float, curve: Curve, *, higher_is_better: bool) -> float | None:
    """Return the examples until the curve first meets the target, interpolated; None if it never does."""
    before: tuple[float, float] | None = None
    for examples, y in zip(curve.examples, curve.quality, strict=False):
        if y >= target if higher_is_better else y <= target:
            if before is None or y == before[1]:
                return float(examples)
            return before[0] + (target - before[1]) / (y - before[1]) * (examples - before[0])
        before = float(examples), y
    return None


def went_wrong(run: RunRecords, metric: str | None) -> str | None:
    """Return a sentence on a loss or metric that is not finite, as of diverged training; else None."""
    for rank in run.ranks:
        for step in rank.steps:
            if step.loss is not None and not math.isfinite(step.loss):
                return f"the loss of rank {rank.rank} is not a number at step {step.step}"
        for log in rank.logs:
            value = None if metric is None else log.values.get(metric)
            if isinstance(value, float) and not math.isfinite(value):
                return f"{metric} is not a number at step {log.step}"
    return None


def time_to_target(plan: Planned, run: Curves) -> float | None:
    """Return the seconds until a run reached the target of the plan; None if it did not, or there is none."""
    if plan.metric is None or plan.target is None or not run.curves:
        return None
    return time_to(plan.target, run.curves[0], higher_is_better=plan.metric.higher_is_better)


@dataclass(frozen=True)
class Against:
    """The quantity on the x axis."""

    name: str
    words: str
    title: str
    kind: Kind
    of: Callable[[Curve], Sequence[float]]


AGAINST = (
    Against("seconds", "time", "training time", "seconds", lambda curve: curve.seconds),
    Against("examples", "examples", "examples, all workers", "count", lambda curve: curve.examples),
    Against("bytes", "bytes", "sent by all workers", "bytes", lambda curve: curve.bytes),
)


def _body(view: View, arms: Arms[Curves]) -> Iterator[Markup]:
    shown = [against for against in AGAINST if _is_known(arms, against)]
    if not shown:
        yield missing(_why_nothing(view))
        return
    yield joined(
        element(
            "input", type="radio", name="against", id=f"by-{against.name}", class_="choice", checked=place == 0
        )
        for place, against in enumerate(shown)
    )  # fmt: skip
    labels = (element("label", against.words, for_=f"by-{against.name}") for against in shown)
    yield element("div", element("span", "against"), *labels, class_="toggle", role="presentation")
    for place, against in enumerate(shown):
        charts = _charts(view, arms, against)
        yield element("div", *charts, class_=f"panel {against.name}{'' if place else ' first'}")
    yield folded("How to read this", paragraphs(EXPLAINED + MARKED * any(arm.time_to_target for arm, _ in arms)))


def _why_nothing(view: View) -> str:
    if view.summary.metric is None:
        return "No metric was named and no training loss was recorded, so there is no curve."
    return f"No run logged {view.summary.metric.name} or a training loss, so there is no curve."


def _curves(curves: Curves, against: Against, losses: bool) -> list[Points]:
    return [
        finite(against.of(curve), curve.quality) if len(against.of(curve)) == len(curve.quality) else []
        for curve in (curves.losses if losses else curves.curves)
    ]


def _is_known(arms: Arms[Curves], against: Against) -> bool:
    """Return whether there is anything to draw, and the x axis has a width."""
    return any(
        x > 0.0
        for _, curves in arms
        for losses in (False, True)
        for curve in _curves(curves, against, losses)
        for x, _ in curve
    )


def _charts(view: View, arms: Arms[Curves], against: Against) -> list[Markup]:
    metric = view.summary.metric
    title = view.time(against.title) if against.kind == "seconds" else against.title
    charts: list[Markup] = []
    if metric is None:
        charts.append(missing("No metric was named, so only the training loss is shown."))
    else:
        better = "higher is better" if metric.higher_is_better else "lower is better"
        y = f"{metric.name} ({better})"
        charts.append(_chart(view, arms, against, f"{metric.name} against {title}", y, losses=False))
    is_shown = metric is None or against.kind != "bytes"  # of a quality beside it, time and examples say enough
    if is_shown and any(curve for _, curves in arms for curve in _curves(curves, against, True)):
        loss = _chart(view, arms, against, f"Training loss against {title}", "training loss", losses=True)
        charts.append(loss if metric is None else folded("Training loss", loss))
    return charts


def _chart(view: View, arms: Arms[Curves], against: Against, caption: str, y: str, *, losses: bool) -> Markup:
    lines = []
    for arm, arm_curves in arms:
        curves = _curves(arm_curves, against, losses)
        if not any(curves):
            continue
        is_timed = against.kind == "seconds" and not losses and arm.time_to_target is not None
        reached = arm.time_to_target.mean if is_timed and arm.time_to_target else None
        lines.append(Line(name=arm.name, look=view.looks[arm.name], curves=curves, reached=reached))
    reason = "no training loss was recorded" if losses else "no evaluation was logged"
    if against.kind == "count":
        reason += ", or examples were not counted"
    note = view.left_out([line.name for line in lines], reason)
    if not lines:
        return missing(f"{caption}: {note or 'nothing was recorded'}")
    target = None if losses else view.summary.target
    axes = Axes(
        x=view.time(against.title) if against.kind == "seconds" else against.title,
        x_kind=against.kind,
        y=y,
        target=target,
        target_words="" if target is None else f"target {target:g}",
    )
    label = _label(caption, lines, target)

    def draw(width: float) -> Markup:
        tall = 300.0 if losses else 400.0
        return line_chart(
            lines, axes, width=width, height=tall if width > 400 else tall * 0.8 + 20 * len(lines), label=label
        )

    return figure(view, caption, draw, note=note)


def _label(caption: str, lines: Sequence[Line], target: float | None) -> str:
    sentences = [f"Line chart: {caption}."]
    for line in lines:
        count = sum(1 for curve in line.curves if curve)
        seeds = "one seed" if count == 1 else f"mean of {count} seeds"
        sentences.append(f"{line.name} ends at {figure_in_words(line.end)} ({seeds}).")
    if target is not None:
        sentences.append(f"The target is {target:g}.")
    return " ".join(sentences)


def points_of(curves: Iterable[Curve]) -> Iterator[Row]:
    """Yield the data of curves: the seed of each, and its points."""
    for curve in curves:
        examples: Iterable[int | None] = curve.examples or (None for _ in curve.seconds)
        for point in zip(curve.seconds, examples, curve.bytes, curve.quality, strict=True):
            yield (curve.seed, *point)


TOPIC = Topic(
    name="quality",
    title="Quality over time",
    lead=LEAD,
    part=Curves,
    is_open=True,
    is_flat=True,
    measure=curves_of,
    summarize=lambda runs: Curves(
        curves=tuple(curve for run in runs for curve in run.curves),
        losses=tuple(curve for run in runs for curve in run.losses),
    ),
    body=_body,
    data={
        "curves": ("seed seconds examples bytes quality", lambda part: points_of(part.curves)),
        "losses": ("seed seconds examples bytes loss", lambda part: points_of(part.losses)),
    },
)
