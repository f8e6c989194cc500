"""The results of a comparison on the console: verdict, table, cautions, and the path of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from quorate.report.parts import View, sentence
from quorate.report.schema import ArmSummary, Estimate, Summary
from quorate.report.summary import summary_type
from quorate.report.topics.scale import TOPIC as SCALE
from quorate.report.topics.scale import curves_in
from quorate.report.wording import Words, numbers_alike, ratios_alike, seconds_alike

_NOTHING = "–"
_UNNAMED = (
    "quality: not compared; let the script call quorate.log(accuracy=…) at its evaluations, and name that value with "
    "--metric accuracy"
)


def show(folder: Path, page: Path, *, as_json: bool) -> None:
    """Print the verdict and a table of `summary.json` in `folder`; with `as_json`, the full text."""
    path = folder / "summary.json"
    text = path.read_text(encoding="utf-8")
    if as_json:
        typer.echo(text.rstrip())
        return
    summary = summary_type().model_validate_json(text)
    typer.echo(summary.verdict)
    if summary.other_work is not None:
        typer.echo(sentence(summary.other_work))
    typer.echo()
    typer.echo("\n".join(_table(summary)))
    typer.echo()
    for curve in curves_in(SCALE.arms(View(summary))):
        typer.echo(f"{curve.sentence()}\n")
        typer.echo("\n".join(_aligned(curve.cells(_NOTHING))) + "\n")
    if summary.metric is None:
        typer.echo(_UNNAMED)
    for warning in summary.warnings:
        typer.echo(f"caution: {warning}")
    typer.echo(f"report: {page}")
    typer.echo(f"figures: {path}")


def _table(summary: Summary) -> list[str]:
    quality = "quality" if summary.metric is None else summary.metric.name
    rate = "examples/s" if summary.world == "real" else "examples/virtual s"
    arms = summary.arms
    columns = [
        ["strategy", *(f"{arm.name} (baseline)" if arm.is_baseline else arm.name for arm in arms)],
        ["speed-up", *_cells([arm.speedup for arm in arms], ratios_alike)],
        [quality, *_cells([arm.quality for arm in arms], numbers_alike)],
        [rate, *_cells([arm.examples_per_second for arm in arms], numbers_alike)],
        ["runs", *map(_runs, arms)],
    ]
    if summary.target is not None:
        times = _cells([arm.time_to_target for arm in arms], seconds_alike)
        time_cells = [_time_to_target(arm, time) for arm, time in zip(arms, times, strict=True)]
        columns.insert(3, [f"time to {summary.target:g}", *time_cells])
        if any(arm.target_speedup is not None for arm in arms):
            to_target = _cells([arm.target_speedup for arm in arms], ratios_alike)
            columns.insert(1, [f"speed-up to {summary.target:g}", *to_target])
    return _aligned(list(zip(*columns, strict=True)))


def _cells(estimates: Sequence[Estimate | None], formatter: Callable[[Sequence[float | None]], Words]) -> list[str]:
    words = formatter([None if estimate is None else estimate.mean for estimate in estimates])
    return [_cell(estimate, words) for estimate in estimates]


def _cell(estimate: Estimate | None, words: Words) -> str:
    if estimate is None:
        return _NOTHING
    if estimate.low is None or estimate.high is None:
        return words(estimate.mean)
    return f"{words(estimate.mean)} ({words(estimate.low)} to {words(estimate.high)})"


def _time_to_target(arm: ArmSummary, time: str) -> str:
    if arm.target_reached is None:
        return _NOTHING
    reached, of = arm.target_reached
    if not reached:
        return "missed"
    missed = "" if reached == of else f", {of - reached} of {of} missed"
    return f"{time}{missed}"


def _runs(arm: ArmSummary) -> str:
    well = sum(run.status == 0 for run in arm.runs)
    return str(well) if well == len(arm.runs) else f"{well} of {len(arm.runs)}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
