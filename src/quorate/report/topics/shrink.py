"""Smaller models: parameters, bytes, operations, times and quality before and after, and quality over bytes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.records.choice_rows import Shrunk
from quorate.report.charts.lines import Axes, Line
from quorate.report.charts.markup import Markup, element
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import (
    HALF,
    NOT_MEASURED,
    QUALITY_DIGITS,
    TableColumns,
    View,
    arms_table,
    figure_in_words,
    framed,
    line_figure,
    paragraphs,
)
from quorate.report.reading.run import RunRecords
from quorate.report.schema import ArmSummary, Part
from quorate.report.topic import Arms, Topic, by_arm, data_of
from quorate.report.wording import bytes_alike, bytes_in_words, listed, numbers_alike, ratios_alike, seconds_alike

LEAD = (
    "A model that becomes smaller while it is trained: before the first step that makes it so, and at the end. The "
    "file is that of quorate pack: zeros and repeated values take few bits."
)
MEANINGS = (
    "Means over the seeds. Operations are those of a forward pass that involve kept weights; kernels for dense "
    "matrices make the others too. Forward and backward passes are timed by the wall clock on one worker, on its first "
    "batch, while the others wait: the fastest of several. The quality before is that of the last evaluation before "
    "the first step."
)


class ModelSize(Part):
    """The size of a model; null if it was not measured."""

    moment: Literal["before", "after"]
    parameters: float
    """Trained numbers that are kept."""
    vector_bytes: float
    """Bytes of these in a vector that a step sends, without its header."""
    file_bytes: float | None
    """Bytes of the packed file."""
    operations: float | None
    forward_seconds: float | None
    backward_seconds: float | None
    quality: float | None


class ShrinkSummary(Part):
    """A model before and after it was made smaller; means over the runs of an arm that ended well."""

    steps: str
    """The steps that made it smaller, in the words of `--shrink`; "none" for a model that stayed as it was."""
    before: ModelSize
    after: ModelSize
    undone: tuple[str, ...]
    """The steps that a guard has undone in some run."""


@dataclass(frozen=True)
class RunSizes:
    """The sizes of one run."""

    steps: str
    before: ModelSize
    after: ModelSize
    undone: Sequence[str]


def sizes_of(run: MeasuredRun) -> RunSizes | None:
    """Return the sizes of the model of a run; None if nothing could make it smaller, or it did not end."""
    rows = [row for rank in run.records.ranks for row in rank.sizes]
    before = next((row for row in rows if row.moment == "before"), None)
    end = next((row for row in rows if row.moment == "end"), None)
    if before is None or end is None:
        return None
    began = next((row.time for row in rows if row.moment == "smaller"), None)
    qualities = list(_qualities(run.records, run.metric))
    first = [quality for time, quality in qualities if began is None or time <= began]
    return RunSizes(
        steps=end.change,
        before=_size("before", before, first[-1] if first else None),
        after=_size("after", end, qualities[-1][1] if qualities else None),
        undone=[row.change for row in rows if row.moment == "undone"],
    )


def _qualities(records: RunRecords, metric: str | None) -> Iterator[tuple[float, float]]:
    """Yield the times of evaluations, with their quality."""
    for log in next((rank.logs for rank in records.ranks if rank.logs), ()):
        value = log.values.get(metric) if metric is not None else None
        if isinstance(value, int | float):
            yield log.time, float(value)


def _size(moment: Literal["before", "after"], row: Shrunk, quality: float | None) -> ModelSize:
    return ModelSize(
        moment=moment,
        parameters=row.parameters,
        vector_bytes=row.vector_bytes,
        file_bytes=row.file_bytes,
        operations=row.operations,
        forward_seconds=row.forward,
        backward_seconds=row.backward,
        quality=quality,
    )


def summarize(runs: Sequence[RunSizes]) -> ShrinkSummary:
    """Return the part of an arm."""
    return ShrinkSummary(
        steps=runs[0].steps,
        before=_mean([run.before for run in runs]),
        after=_mean([run.after for run in runs]),
        undone=tuple(sorted({step for run in runs for step in run.undone})),
    )


def _mean(sizes: Sequence[ModelSize]) -> ModelSize:
    means: dict[str, float | None] = {}
    for name in ModelSize.model_fields.keys() - {"moment"}:
        known = [value for size in sizes if (value := getattr(size, name)) is not None]
        means[name] = statistics.fmean(known) if len(known) == len(sizes) else None
    return ModelSize.model_validate({"moment": sizes[0].moment, **means})


def _body(view: View, arms: Arms[ShrinkSummary]) -> Iterator[Markup]:
    rows: list[tuple[ArmSummary, ShrinkSummary, ModelSize]] = []
    for arm, shrink in arms:
        rows += [
            (arm, shrink, size) for size in (shrink.before, shrink.after) if size.moment == "after" or _acts(shrink)
        ]
    yield framed(view, "Before and after", arms_table(rows, _COLUMNS), paragraphs(MEANINGS, _undone(arms)))
    metric = view.summary.metric
    if metric is None:
        return
    charts = []
    for title, of_size in _CHARTS:
        lines = [
            Line(name=arm.name, look=view.looks[arm.name], curves=[[(x, quality)]], is_of_runs=False)
            for arm, shrink in arms
            if (x := of_size(shrink.after)) is not None and (quality := shrink.after.quality) is not None
        ]
        if len(lines) > 1:
            better = "higher is better" if metric.higher_is_better else "lower is better"
            axes = Axes(x=title, x_kind="bytes", y=f"{metric.name} ({better})")
            words = " ".join(
                f"{line.name}: {line.end:.4g} at {bytes_in_words(line.curves[0][0][0])}." for line in lines
            )
            label = f"Dots: {metric.name} over {title}. {words}"
            charts.append(line_figure(view, f"{metric.name} over {title}", lines, axes, label, wide=HALF))
    if charts:
        yield element("div", *charts, class_="figures")


def _acts(shrink: ShrinkSummary) -> bool:
    return shrink.steps != "none"


def _undone(arms: Arms[ShrinkSummary]) -> str:
    words = [f"{arm.name} ({listed(list(shrink.undone))})" for arm, shrink in arms if shrink.undone]
    return f"A guard has undone steps of {listed(words)}: the loss had left its band." if words else ""


def _in_words(shrink: ShrinkSummary) -> str:
    before, after = shrink.before, shrink.after
    parts = [f"parameters {before.parameters:,.0f} to {after.parameters:,.0f}"]
    if before.file_bytes is not None and after.file_bytes is not None:
        ratio = ratios_alike([before.file_bytes / after.file_bytes])(before.file_bytes / after.file_bytes)
        parts.append(f"packed file {bytes_in_words(before.file_bytes)} to {bytes_in_words(after.file_bytes)} ({ratio})")
    if after.quality is not None:
        parts.append(f"quality {figure_in_words(after.quality)}")
    if shrink.undone:
        parts.append(f"undone by a guard: {listed(list(shrink.undone))}")
    if not _acts(shrink):
        size = NOT_MEASURED if after.file_bytes is None else bytes_in_words(after.file_bytes)
        return f"full model, {after.parameters:,.0f} parameters, packed file {size}" + "".join(
            f", {part}" for part in parts if part.startswith("quality")
        )
    return ", ".join(parts)


_COLUMNS: TableColumns[ShrinkSummary, ModelSize] = (
    ("model", lambda shrink, size: size.moment if _acts(shrink) else "full", None),
    ("parameters", lambda shrink, size: f"{size.parameters:,.0f}", None),
    ("vector", lambda shrink, size: size.vector_bytes, bytes_alike),
    ("packed file", lambda shrink, size: size.file_bytes, bytes_alike),
    ("operations", lambda shrink, size: size.operations, numbers_alike),
    ("forward", lambda shrink, size: size.forward_seconds, seconds_alike),
    ("backward", lambda shrink, size: size.backward_seconds, seconds_alike),
    ("quality", lambda shrink, size: size.quality, lambda values: numbers_alike(values, QUALITY_DIGITS)),
)
_CHARTS: Sequence[tuple[str, Callable[[ModelSize], float | None]]] = (
    ("packed file", lambda size: size.file_bytes),
    ("vector of a step", lambda size: size.vector_bytes),
)
TOPIC = Topic(
    name="shrink",
    title="Smaller models",
    lead=LEAD,
    is_open=True,
    part=ShrinkSummary,
    measure=sizes_of,
    summarize=summarize,
    body=_body,
    markdown=lambda view, arms: by_arm("Smaller models", arms, _in_words),
    data={
        "shrink": data_of(
            "moment parameters vector_bytes file_bytes operations forward_seconds backward_seconds quality",
            lambda shrink: [shrink.before, shrink.after],
        )
    },
)
