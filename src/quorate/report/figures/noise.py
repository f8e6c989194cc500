"""The noise of the gradients of a run, and the consequences for its batch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorate.core.gradient_noise import diversity, example_factor, gain, scale_of, step_factor
from quorate.records.rows import Noise, Step
from quorate.report.schema_parts import NoisePoint, NoiseSummary
from quorate.report.wording import counted, number_in_words, share_in_words

SHOWN = 400
"""The most measurements that are drawn: evenly over the run."""
FEW = 8
"""The number of measurements below which no critical batch is reported: single ones are off by factors."""
MUCH, LITTLE = 1.5, 1.2
"""Savings in steps by twice the batch, as factors: worth twice the workers from the first, not below the second."""


@dataclass(frozen=True)
class NoiseFigures:
    """The noise of one run; `rows` are of its first optimizer."""

    rows: Sequence[Noise]
    points: Sequence[NoisePoint]
    examples: float | None
    """Examples in the batch of one gradient; None if they were not counted."""


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
    factors = None if scale is None else _known(scale, gradients)
    return NoiseSummary(
        count=sum(len(run.rows) for run in runs),
        gradients=gradients,
        examples=examples,
        scale=scale,
        diversity=diversity(squares, mean, round(gradients)) if mean > 0 else None,
        step_factor=None if factors is None else factors[0],
        example_factor=None if factors is None else factors[1],
        gain=None if factors is None else factors[2],
        advice=_advice_of(sum(len(run.rows) for run in runs), scale, gradients, examples),
        shown=tuple(points[:: max(1, -(-len(points) // SHOWN))]),
    )


def _known(scale: float, gradients: float) -> tuple[float, float | None, float]:
    examples = example_factor(scale, gradients)
    return step_factor(scale, gradients), examples if scale > 0 else None, gain(scale, gradients)


def _advice_of(count: int, scale: float | None, gradients: float, examples: float | None) -> str:
    if count >= FEW:
        return advice(scale, gradients, examples)
    measurements = f"{counted(count, 'measurement')} {'is' if count == 1 else 'are'}"
    return f"{measurements} too few to say whether the batch of {batch_in_words(gradients, examples)} is large"


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
            f"{batch}, or the training has come to rest"
        )
    saved = 1 - 1 / gain(scale, gradients)
    said = (
        f"the critical batch is about {batch_in_words(scale, examples)}; the batch of {batch} takes "
        f"{number_in_words(step_factor(scale, gradients))} times the fewest steps possible"
    )
    if scale > 0:
        said += f" and {number_in_words(example_factor(scale, gradients))} times the fewest examples"
    more = f"twice the workers would save {share_in_words(saved)} of the steps"
    if gain(scale, gradients) >= MUCH:
        return f"{said}; {more}: more workers are worth having"
    if gain(scale, gradients) >= LITTLE:
        return f"{said}; {more}: more workers bring less and less"
    return f"{said}; {more}: more workers bring next to nothing"
