"""Sparse attention: its loss beside that of dense attention, where a script compares them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quorate.records.rows import Log
from quorate.report.charts.lines import Axes, Line
from quorate.report.charts.markup import Markup
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import TableColumns, View, arms_table, framed, line_figure, paragraphs
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic, by_arm, data_of
from quorate.report.wording import counted, listed

LEAD = (
    "Every few steps the loss of one batch was computed twice: with sparse attention, and with dense attention. The "
    "gap is the share by which the first exceeds the second."
)
MEANINGS = (
    "Each gap is the mean over the workers. The gap in the last check is also the mean over the runs, and the largest "
    "gap is that of any check. Both losses are of the same batch with the same random numbers, without gradients."
)
SHOWN = 400
"""The most checks that are drawn: evenly over the run."""


class AttentionCheck(Part):
    """One comparison of sparse with dense attention."""

    step: int
    seconds: float
    """Seconds of the run's training time."""
    loss: float
    dense_loss: float
    gap: float
    """The share by which the loss exceeds that of dense attention."""


class AttentionSummary(Part):
    """The loss of sparse attention beside that of dense attention, over the runs of an arm that ended well."""

    count: int
    """Checks of all runs."""
    last_gap: float
    """The mean over the runs of the gap in the last check."""
    largest_gap: float
    taken_back: tuple[int, ...]
    """The steps of runs after which attention was dense, because the gap exceeded its limit."""
    shown: tuple[AttentionCheck, ...]
    """The checks of the first run, at most 400."""


@dataclass(frozen=True)
class AttentionFigures:
    """The checks of one run."""

    checks: Sequence[AttentionCheck]
    taken_back: int | None
    """The step after which attention was dense; None: it stayed sparse."""


def checks_of(run: MeasuredRun) -> AttentionFigures | None:
    """Return the checks that the first worker with any has logged; None without checks."""
    for rank in run.records.ranks if run.records.has_steps else ():
        logs = [log for log in rank.logs if "attention_gap" in log.values]
        if logs:
            checks = [_check(log, run.records.training_seconds(log.time)) for log in logs]
            known = [check for check in checks if math.isfinite(check.loss) and math.isfinite(check.gap)]
            ends = [log.step for log in logs if log.values.get("attention_taken_back")]
            return AttentionFigures(known, min(ends, default=None)) if known else None
    return None


def _check(log: Log, seconds: float) -> AttentionCheck:
    loss, dense, gap = (float(log.values[name]) for name in ("attention_loss", "dense_attention_loss", "attention_gap"))
    return AttentionCheck(step=log.step, seconds=seconds, loss=loss, dense_loss=dense, gap=gap)


def summarize(runs: Sequence[AttentionFigures]) -> AttentionSummary:
    """Return the part of an arm."""
    checks = runs[0].checks
    return AttentionSummary(
        count=sum(len(run.checks) for run in runs),
        last_gap=statistics.fmean(run.checks[-1].gap for run in runs),
        largest_gap=max(check.gap for run in runs for check in run.checks),
        taken_back=tuple(sorted(run.taken_back for run in runs if run.taken_back is not None)),
        shown=tuple(checks[:: max(1, -(-len(checks) // SHOWN))]),
    )


def _body(view: View, arms: Arms[AttentionSummary]) -> Iterator[Markup]:
    yield framed(view, "Loss beside dense attention", arms_table(arms, _COLUMNS), paragraphs(MEANINGS))
    drawn = [(arm, attention) for arm, attention in arms if len(attention.shown) > 1]
    if not drawn:
        return
    lines = [
        Line(
            name=arm.name,
            look=view.looks[arm.name],
            curves=[[(check.seconds, 100 * check.gap) for check in attention.shown]],
        )
        for arm, attention in drawn
    ]
    axes = Axes(x=view.time("training time"), x_kind="seconds", y="gap, percent of the loss of dense attention")
    ends = (
        f"{arm.name}: from {_signed(attention.shown[0].gap)} to {_signed(attention.shown[-1].gap)}."
        for arm, attention in drawn
    )
    label = f"Line chart: the gap in loss over the training time. {' '.join(ends)}"
    yield line_figure(view, "The gap in loss over training", lines, axes, label)


def _signed(gap: float) -> str:
    return f"{gap:+.2%}"


def _dense(attention: AttentionSummary) -> str:
    if not attention.taken_back:
        return "never"
    return f"after step {listed([f'{step:,}' for step in attention.taken_back])}"


def _in_words(attention: AttentionSummary) -> str:
    words = (
        f"{counted(attention.count, 'check')}, gap {_signed(attention.last_gap)} in the last, at most "
        f"{_signed(attention.largest_gap)}"
    )
    return f"{words}; dense {_dense(attention)}" if attention.taken_back else words


_COLUMNS: TableColumns[AttentionSummary] = (
    ("checks", lambda attention: f"{attention.count:,}", None),
    ("gap in the last", lambda attention: _signed(attention.last_gap), None),
    ("largest gap", lambda attention: _signed(attention.largest_gap), None),
    ("taken back", _dense, None),
)
TOPIC = Topic(
    name="attention",
    title="Sparse attention",
    lead=LEAD,
    part=AttentionSummary,
    measure=checks_of,
    summarize=summarize,
    body=_body,
    markdown=lambda view, arms: by_arm("Sparse attention", arms, _in_words),
    data={"attention": data_of("step seconds loss dense_loss gap", lambda attention: attention.shown)},
)
