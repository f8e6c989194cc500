"""The results of a comparison on the console: verdict, table, cautions, and the path of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from quorate.cli.tables import echo_text, table, terminal_width
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
    echo_text(summary.verdict)
    if summary.other_work is not None:
        echo_text(sentence(summary.other_work))
    _echo_table(_rows(summary))
    for curve in curves_in(SCALE.arms(View(summary))):
        echo_text(curve.sentence())
        _echo_table(curve.cells(_NOTHING))
    if summary.metric is None:
        echo_text(_UNNAMED)
    for warning in summary.warnings:
        echo_text(f"caution: {warning}")
    typer.echo(f"report: {page}")
    typer.echo(f"figures: {path}")


def _echo_table(rows: Sequence[Sequence[str]]) -> None:
    heads, *cells = rows
    typer.echo("\n".join(["", *table(heads, cells, terminal_width()), ""]))


def _rows(summary: Summary) -> list[tuple[str, ...]]:
    """Return the heads, and a row of cells for each arm."""
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
    return list(zip(*columns, strict=True))


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
