"""Gradient noise: the critical batch, and the gain from more workers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quorate.core.gradient_noise import diversity, example_factor, gain, scale_of, step_factor
from quorate.records.rows import Noise, Step
from quorate.report.charts.lines import Axes, Line
from quorate.report.charts.markup import Markup
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import TableColumns, View, arms_table, framed, line_figure, nothing, paragraphs
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic, by_arm, data_of
from quorate.report.wording import counted, number_in_words, numbers_alike, ratios_alike, share_in_words, shares_alike

LEAD = (
    "Gradients of batches differ from the gradient of all data by noise. At the critical batch (the noise scale), "
    "noise and signal are equally large: a training needs twice the minimum number of steps and twice the minimum "
    "number of examples. Batches far below it gain from more workers; batches far above it do not."
)
MEANINGS = (
    "Steps and examples are multiples of the minimum that a training of the same quality needs with any batch size. "
    "They hold if the learning rate is tuned for each batch. The diversity is 1 if the gradients of the workers are "
    "orthogonal, and 1 over the number of workers if they are equal. All figures are those at the end of the runs; "
    "the critical batch grows during a training."
)
SHOWN = 400
"""The most measurements that are drawn: evenly over the run."""
FEW = 8
"""The number of measurements below which no critical batch is reported: single ones are off by factors."""
MUCH, LITTLE = 1.5, 1.2
"""Savings in steps by twice the batch, as factors: worth twice the workers from the first, not below the second."""


class NoisePoint(Part):
    """The noise scale at one measurement."""

    seconds: float
    """Seconds of the run's training time."""
    scale: float
    """In gradients of one worker, smoothed."""


class NoiseSummary(Part):
    """The noise of gradients at the end of all runs that count together, and the consequences for the batch.

    A batch is here a number of gradients of one worker; times `examples`, it is one of examples.
    """

    count: int
    """Measurements."""
    gradients: float
    """Gradients in a mean: the batch."""
    examples: float | None
    """Examples in the batch of one gradient; null if they were not counted."""
    scale: float | None
    """The noise scale, which is the critical batch; null if no signal was seen."""
    diversity: float | None
    """The diversity of the gradients in a mean, over all runs."""
    step_factor: float | None
    """The steps of this batch, as a multiple of the fewest possible."""
    example_factor: float | None
    """The examples, as a multiple of the fewest possible; null without noise, too."""
    gain: float | None
    """The factor by which twice the batch would save steps: from 1 to 2."""
    advice: str
    """A sentence without its full stop."""
    shown: tuple[NoisePoint, ...]
    """Points of the first run, at most 400."""


@dataclass(frozen=True)
class NoiseFigures:
    """The noise of one run; `rows` are of its first optimizer."""

    rows: Sequence[Noise]
    points: Sequence[NoisePoint]
    examples: float | None
    """Examples in the batch of one gradient; None if they were not counted."""


def noise_of(run: MeasuredRun) -> NoiseFigures | None:
    """Return the noise that the first ranks in turn have recorded."""
    records = run.records
    rows = sorted((row for rank in records.ranks for row in rank.noises), key=lambda row: row.time)
    steps = [step for rank in records.ranks for step in rank.steps]
    return noise_figures(rows, steps, records.training_seconds) if records.has_steps and rows else None


def noise_figures(
    rows: Sequence[Noise], steps: Sequence[Step], seconds_at: Callable[[float], float]
) -> NoiseFigures | None:
    """Return the noise of a run; None without `rows`.

    `steps` are those of all ranks; `seconds_at` converts a time to seconds of the run's training.
    """
    first = [row for row in rows if row.optimizer == rows[0].optimizer]
    if not first:
        return None
    counts = [step.examples for step in steps if step.examples]
    points = [
        NoisePoint(seconds=seconds_at(row.time), scale=scale)
        for row in first
        if (scale := scale_of(row.signal, row.noise)) is not None
    ]
    return NoiseFigures(first, points, statistics.median(counts) if counts else None)


def noise_summary(runs: Sequence[NoiseFigures]) -> NoiseSummary | None:
    """Return the noise at the end of all runs of an arm together; the curve is that of the first."""
    if not runs:
        return None
    last = [run.rows[-1] for run in runs]
    scale = scale_of(statistics.fmean(row.signal for row in last), statistics.fmean(row.noise for row in last))
    gradients = statistics.fmean(row.gradients for run in runs for row in run.rows)
    squares = statistics.fmean(row.own for run in runs for row in run.rows)
    mean = statistics.fmean(row.mean for run in runs for row in run.rows)
    examples = next((run.examples for run in runs if run.examples), None)
    points = runs[0].points
    return NoiseSummary(
        count=sum(len(run.rows) for run in runs),
        gradients=gradients,
        examples=examples,
        scale=scale,
        diversity=diversity(squares, mean, round(gradients)) if mean > 0 else None,
        step_factor=None if scale is None else step_factor(scale, gradients),
        example_factor=example_factor(scale, gradients) if scale is not None and scale > 0 else None,
        gain=None if scale is None else gain(scale, gradients),
        advice=_advice_of(sum(len(run.rows) for run in runs), scale, gradients, examples),
        shown=tuple(points[:: max(1, -(-len(points) // SHOWN))]),
    )


def _advice_of(count: int, scale: float | None, gradients: float, examples: float | None) -> str:
    if count >= FEW:
        return advice(scale, gradients, examples)
    measurements = f"{counted(count, 'measurement')} {'is' if count == 1 else 'are'}"
    return f"{measurements} too few to judge the batch of {batch_in_words(gradients, examples)}"


def batch_in_words(gradients: float, examples: float | None) -> str:
    """Return `256 examples`, or `4.00 gradients` if examples were not counted."""
    if examples is None:
        return f"{number_in_words(gradients)} gradients"
    return f"{gradients * examples:,.0f} examples"


def advice(scale: float | None, gradients: float, examples: float | None) -> str:
    """Return the advice as a sentence without its full stop."""
    batch = batch_in_words(gradients, examples)
    if scale is None:
        return (
            "no signal is seen in the noise of these gradients: the critical batch is well above the batch of "
            f"{batch}, or the training has converged"
        )
    saved = 1 - 1 / gain(scale, gradients)
    said = (
        f"the critical batch is about {batch_in_words(scale, examples)}; the batch of {batch} takes "
        f"{number_in_words(step_factor(scale, gradients))} times the minimum number of steps"
    )
    if scale > 0:
        said += f" and {number_in_words(example_factor(scale, gradients))} times the minimum number of examples"
    more = f"doubling the workers would save {share_in_words(saved)} of the steps"
    if gain(scale, gradients) >= MUCH:
        return f"{said}; {more}: more workers are worth having"
    if gain(scale, gradients) >= LITTLE:
        return f"{said}; {more}: more workers bring diminishing returns"
    return f"{said}; {more}: more workers bring almost nothing"


def _body(view: View, arms: Arms[NoiseSummary]) -> Iterator[Markup]:
    names = ["" if view.is_single else f"{arm.name}: " for arm, _ in arms]
    yield paragraphs(*(f"{name}{summary.advice}." for name, (_, summary) in zip(names, arms, strict=True)))
    yield framed(view, "Cost of the batch size", arms_table(arms, _COLUMNS), paragraphs(MEANINGS))
    yield _chart(view, arms)


def _critical(summary: NoiseSummary) -> str | Markup:
    if summary.count < FEW:
        return nothing("too few measurements")
    return nothing("not seen") if summary.scale is None else batch_in_words(summary.scale, summary.examples)


def _chart(view: View, arms: Arms[NoiseSummary]) -> Markup:
    drawn = [(arm, summary) for arm, summary in arms if len(summary.shown) > 1]
    if not drawn:
        return Markup()
    are_counted = all(summary.examples is not None for _, summary in drawn)
    units = {arm.name: (summary.examples or 1.0) if are_counted else 1.0 for arm, summary in drawn}
    lines = [
        Line(
            name=arm.name,
            look=view.looks[arm.name],
            curves=[[(point.seconds, point.scale * units[arm.name]) for point in summary.shown]],
        )
        for arm, summary in drawn
    ]
    batches = {summary.gradients * units[arm.name] for arm, summary in drawn}
    batch = batches.pop() if len(batches) == 1 else None
    of = "examples" if are_counted else "gradients"
    axes = Axes(
        x=view.time("training time"),
        x_kind="seconds",
        y=f"critical batch, {of}",
        target=batch,
        target_words="" if batch is None else f"the batch: {number_in_words(batch)}",
    )
    ends = (
        f"{arm.name}: from {number_in_words(summary.shown[0].scale * units[arm.name])} to "
        f"{number_in_words(summary.shown[-1].scale * units[arm.name])} {of}."
        for arm, summary in drawn
    )
    label = f"Line chart: the critical batch over the training time. {' '.join(ends)}"
    note = "Smoothed over about 20 measurements; measurements without a signal are left out."
    return line_figure(view, "The critical batch over training", lines, axes, label, note=note)


def _if_known(noise: NoiseSummary, figure: float | None) -> float | None:
    return figure if noise.count >= FEW else None


def _saved(noise: NoiseSummary) -> float | None:
    return None if noise.gain is None else 1 - 1 / noise.gain


_COLUMNS: TableColumns[NoiseSummary] = (
    ("critical batch", _critical, None),
    ("batch", lambda noise: batch_in_words(noise.gradients, noise.examples), None),
    ("steps", lambda noise: _if_known(noise, noise.step_factor), ratios_alike),
    ("examples", lambda noise: _if_known(noise, noise.example_factor), ratios_alike),
    ("steps saved by doubling the workers", lambda noise: _if_known(noise, _saved(noise)), shares_alike),
    ("diversity", lambda noise: noise.diversity, numbers_alike),
)
TOPIC = Topic(
    name="noise",
    title="Gradient noise",
    lead=LEAD,
    part=NoiseSummary,
    measure=noise_of,
    summarize=noise_summary,
    body=_body,
    markdown=lambda view, arms: by_arm("Gradient noise", arms, lambda summary: summary.advice),
    data={"noise": data_of("seconds scale", lambda summary: summary.shown)},
)
