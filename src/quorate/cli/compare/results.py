"""How a comparison ends on the console: the verdict, a short table, what a reader has to know, where the page is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from quorate.report.schema import ArmSummary, Estimate, Summary
from quorate.report.wording import number_in_words, seconds_in_words

_NOTHING = "–"
_UNNAMED = (
    "quality: not compared; let the script call quorate.log(accuracy=…) at its evaluations, and name that value with "
    "--metric accuracy"
)


def show(folder: Path, page: Path, *, as_json: bool) -> None:
    """What `summary.json` in `folder` says; `as_json`, the whole of it."""
    path = folder / "summary.json"
    text = path.read_text(encoding="utf-8")
    if as_json:
        typer.echo(text.rstrip())
        return
    summary = Summary.model_validate_json(text)
    typer.echo(summary.verdict)
    typer.echo()
    for line in _table(summary):
        typer.echo(line)
    typer.echo()
    if summary.metric is None:
        typer.echo(_UNNAMED)
    for warning in summary.warnings:
        typer.echo(f"caution: {warning}")
    typer.echo(f"report: {page}")
    typer.echo(f"figures: {path}")


def _table(summary: Summary) -> list[str]:
    quality = "quality" if summary.metric is None else summary.metric.name
    rate = "examples/s" if summary.world == "real" else "examples/virtual s"
    heads = ["strategy", quality, rate, "speed-up", "runs"]
    rows = [
        [
            f"{arm.name} (baseline)" if arm.is_baseline else arm.name,
            _cell(arm.quality, number_in_words),
            _cell(arm.examples_per_second, number_in_words),
            _cell(arm.speedup, lambda ratio: f"{ratio:.2f}"),
            _runs(arm),
        ]
        for arm in summary.arms
    ]
    if summary.target is not None:
        heads.insert(2, f"time to {summary.target:g}")
        for row, arm in zip(rows, summary.arms, strict=True):
            row.insert(2, _time_to_target(arm))
    return _aligned([heads, *rows])


def _cell(estimate: Estimate | None, words: Callable[[float], str]) -> str:
    if estimate is None:
        return _NOTHING
    if estimate.low is None or estimate.high is None:
        return words(estimate.mean)
    return f"{words(estimate.mean)} ({words(estimate.low)} to {words(estimate.high)})"


def _time_to_target(arm: ArmSummary) -> str:
    """A miss is a miss, not a number."""
    if arm.target_reached is None:
        return _NOTHING
    reached, of = arm.target_reached
    if not reached:
        return "missed"
    missed = "" if reached == of else f", {of - reached} of {of} missed"
    return f"{_cell(arm.time_to_target, seconds_in_words)}{missed}"


def _runs(arm: ArmSummary) -> str:
    well = sum(run.status == 0 for run in arm.runs)
    return str(well) if well == len(arm.runs) else f"{well} of {len(arm.runs)}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
