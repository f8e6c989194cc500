"""The summary of a comparison, or of one run, from its records."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from quorate.report.figures.arms import arm_of
from quorate.report.figures.cautions import cautions_of
from quorate.report.figures.fairness import fairness_of
from quorate.report.figures.run import RunFigures, figures_of
from quorate.report.figures.side_by_side import of_common_seeds
from quorate.report.figures.time_use import edges_for
from quorate.report.figures.tuning import trials_of
from quorate.report.figures.verdict import verdict_of
from quorate.report.markdown import markdown
from quorate.report.plot_data import tables
from quorate.report.reading.planned import Planned, planned_in
from quorate.report.schema import Reproduce, Summary

SUMMARY = "summary.json"


def _qualities(runs: Mapping[str, Sequence[RunFigures]]) -> Mapping[str, Mapping[int, float]]:
    return {
        name: {run.seed: run.quality for run in arm_runs if run.is_used and run.quality is not None}
        for name, arm_runs in runs.items()
    }


def summarize(folder: Path) -> Summary:
    """Summarize the comparison or the run in `folder`. Raises `ConfigurationError` if there is neither.

    Runs are read one after the other; of each only its figures are kept. Cost: some 30 µs a row.
    """
    plan = planned_in(folder)
    by_arm = {arm.name: [figures_of(place, seed, plan) for seed, place in arm.runs.items()] for arm in plan.arms}
    runs = of_common_seeds(plan, by_arm)
    edges = edges_for([run.lengths for arm_runs in runs.values() for run in arm_runs if run.is_used])
    baseline = [] if plan.baseline is None else runs[plan.baseline.name]
    arms = tuple(arm_of(arm, runs[arm.name], baseline, plan, edges) for arm in plan.arms)
    trials = trials_of(plan)
    return Summary(
        title=plan.title,
        world=plan.world,
        workers=plan.workers,
        verdict=verdict_of(plan, arms, _qualities(runs)),
        warnings=tuple(cautions_of(plan, runs, arms)),
        metric=plan.metric,
        target=plan.target,
        baseline=None if plan.baseline is None else plan.baseline.name,
        imbalance=plan.text("imbalance"),
        pace=plan.text("pace"),
        arms=arms,
        tuning=trials,
        fairness=fairness_of(plan, runs, trials),
        reproduce=_reproduce(plan),
    )


def _reproduce(plan: Planned) -> Reproduce:
    about = plan.about
    git = about.get("git") or {}
    return Reproduce(
        command=tuple(str(word) for word in about.get("command") or ()),
        started=str(about.get("started") or ""),
        git=git if git.get("commit") else None,
        packages=dict(about.get("versions") or {}),
        machine=plan.machine,
        settings=plan.settings,
    )


def write_summary(folder: Path, summary: Summary) -> None:
    """Write `summary.json`, `summary.md`, and the data of every plot as `data/*.csv`; each file complete."""
    write_files(folder, {SUMMARY: summary.model_dump_json(indent=1) + "\n", "summary.md": markdown(summary)})
    write_files(folder / "data", {f"{name}.csv": table for name, table in tables(summary).items()})


def write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts by name: each to a temporary file first, which then replaces an older one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        part = folder / f".{name}.{os.getpid()}.part"
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, folder / name)
        finally:
            part.unlink(missing_ok=True)
