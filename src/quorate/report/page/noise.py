"""Gradient noise: the critical batch, and the gain from more workers."""

from __future__ import annotations

from quorate.report.charts.lines import Axes, Line, line_chart
from quorate.report.charts.markup import Markup
from quorate.report.figures.noise import FEW, batch_in_words
from quorate.report.page.parts import View, alike, figure, framed, nothing, paragraphs, section, table
from quorate.report.schema import ArmSummary
from quorate.report.schema_parts import NoiseSummary
from quorate.report.wording import number_in_words, numbers_alike, ratios_alike, shares_alike

LEAD = (
    "Gradients of batches differ from the gradient of all data by noise. At the critical batch, the noise scale, noise "
    "and signal are of equal size: a training takes twice the fewest steps possible and twice the fewest examples. A "
    "batch far below it gains from more workers; one far above it does not."
)
MEANINGS = (
    "Steps and examples are times the fewest that a training of the same quality could take with batches of any size. "
    "They hold at a learning rate that is tuned for each batch. The diversity is 1 where gradients of workers are "
    "orthogonal, and 1 over their number where they are equal. All is at the end of the runs; the critical batch grows "
    "as training goes on."
)
Arms = list[tuple[ArmSummary, NoiseSummary]]


def noise(view: View) -> Markup:
    """Return the section, if some arm has measured its noise."""
    arms = [(arm, arm.noise) for arm in view.summary.arms if arm.noise is not None]
    if not arms:
        return Markup()
    names = ["" if view.is_single else f"{arm.name}: " for arm, _ in arms]
    sentences = [f"{name}{summary.advice}." for name, (_, summary) in zip(names, arms, strict=True)]
    return section("noise", "Gradient noise", LEAD, paragraphs(*sentences), _table(view, arms), _chart(view, arms))


def _table(view: View, arms: Arms) -> Markup:
    heads = [
        "strategy", "critical batch", "batch", "steps", "examples", "steps saved by twice the workers", "diversity",
    ]  # fmt: skip
    figures = alike(
        [
            [
                summary.step_factor,
                summary.example_factor,
                None if summary.gain is None else 1 - 1 / summary.gain,
                summary.diversity,
            ]
            if summary.count >= FEW
            else [None, None, None, summary.diversity]
            for _, summary in arms
        ],
        [ratios_alike, ratios_alike, shares_alike, numbers_alike],
    )
    rows = [
        [
            arm.name,
            _critical(summary),
            batch_in_words(summary.gradients, summary.examples),
            *row,
        ]
        for (arm, summary), row in zip(arms, figures, strict=True)
    ]
    return framed(view, "What the batch costs", table(heads, rows), paragraphs(MEANINGS))


def _critical(summary: NoiseSummary) -> str | Markup:
    if summary.count < FEW:
        return nothing("too few measurements")
    return nothing("not seen") if summary.scale is None else batch_in_words(summary.scale, summary.examples)


def _chart(view: View, arms: Arms) -> Markup:
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
    return figure(
        view,
        "The critical batch over training",
        lambda width: line_chart(lines, axes, width=width, height=300.0, label=label),
        note="Smoothed over some 20 measurements; measurements in which no signal is seen are left out.",
    )
