"""The summary of a comparison, or of one run, from its records; and the files of its report."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import create_model

from quorate.report import topics
from quorate.report.cautions import cautions_of, notes_of
from quorate.report.figures import throughput
from quorate.report.figures.run import MeasuredRun
from quorate.report.host_load import load_of, other_work_in_words
from quorate.report.page import page
from quorate.report.parts import View
from quorate.report.reading.planned import Planned, PlannedArm, planned_in
from quorate.report.reading.run import RunRecords, read_run
from quorate.report.results import results_of
from quorate.report.runs import RunFigures, of_common_seeds
from quorate.report.schema import NOT_BEGUN, STOPPED, UNDER_WAY, ArmSummary, Outcome, Summary
from quorate.report.topic import Topic
from quorate.report.topics.fairness import fairness_of, trials_of
from quorate.report.topics.quality import final_quality, time_to_target
from quorate.report.topics.reproduce import reproduce_of
from quorate.report.topics.verdict import verdict_of

SUMMARY, PAGE = "summary.json", "report.html"


def arm_type() -> type[ArmSummary]:
    """Return the schema of an arm in `summary.json`: the fields of all arms, and those of each topic."""
    return _types(topics.TOPICS)[0]


def summary_type() -> type[Summary]:
    """Return the schema of `summary.json`."""
    return _types(topics.TOPICS)[1]


@cache
def _types(listed: tuple[Topic[Any, Any], ...]) -> tuple[type[ArmSummary], type[Summary]]:
    fields = {name: entry for topic in listed for name, entry in topic.field_types().items()}
    arm = create_model("ArmSummary", __base__=ArmSummary, __doc__=ArmSummary.__doc__, **fields)
    arms: Any = (tuple[arm, ...], ...)  # type: ignore[valid-type]
    return arm, create_model("Summary", __base__=Summary, __doc__=Summary.__doc__, arms=arms)


def summarize(folder: Path, *, relevant: float | None = None, is_live: bool = False) -> Summary:
    """Summarize the comparison or the run in `folder`. Raises `ConfigurationError` if there is neither.

    `relevant` is the smallest difference that counts, as a share; by default that of the comparison. A run that
    `is_live` is not expected to have ended.
    Runs are read one after the other; of each only its figures are kept. Cost: some 30 µs a row.
    """
    plan = planned_in(folder)
    plan = replace(plan, is_under_way=plan.is_under_way or is_live)
    if relevant is not None:
        plan = replace(plan, relevant=relevant)
    by_arm = {arm.name: [figures_of(place, seed, plan) for seed, place in arm.runs.items()] for arm in plan.arms}
    runs = of_common_seeds(plan, by_arm)
    used = [run for arm_runs in runs.values() for run in arm_runs if run.is_used]
    for topic in topics.TOPICS:
        topic.align([figures for run in used if (figures := topic.figures(run)) is not None])
    baseline = [] if plan.baseline is None else runs[plan.baseline.name]
    arms = tuple(_arm(arm, runs[arm.name], baseline, plan) for arm in plan.arms)
    trials = trials_of(plan)
    return summary_type()(
        title=plan.title,
        world=plan.world,
        workers=plan.workers,
        verdict=verdict_of(plan, arms, _qualities(runs)),
        other_work=other_work_in_words(run.outcome for arm_runs in runs.values() for run in arm_runs),
        warnings=tuple(cautions_of(plan, runs, arms)),
        metric=plan.metric,
        target=plan.target,
        baseline=None if plan.baseline is None else plan.baseline.name,
        relevant=plan.relevant,
        imbalance=plan.text("imbalance"),
        pace=plan.text("pace"),
        arms=arms,
        tuning=trials,
        fairness=fairness_of(plan, runs, trials),
        reproduce=reproduce_of(plan),
    )


def figures_of(folder: Path, seed: int, plan: Planned) -> RunFigures:
    """Read one run of the plan and measure it."""
    records = read_run(folder) if plan.records is None else plan.records
    metric = None if plan.metric is None else plan.metric.name
    run = MeasuredRun(records, plan.warm_up_steps, merged=records.merged(), seed=seed, metric=metric)
    window = run.window
    by_topic: dict[str, Any] = {topic.name: topic.measure(run) for topic in topics.TOPICS}
    return RunFigures(
        seed=seed,
        about=records.about,
        outcome=_outcome(records, seed, plan),
        is_used=records.has_steps and (records.status == 0 or plan.is_single),
        notes=tuple(notes_of(records, plan, is_measured=window is not None)),
        hosts=len({rank.start.get("host") for rank in records.ranks if rank.start}),
        clock_uncertainty=records.clock_uncertainty,
        batch=throughput.batch_of(records),
        quality=None if metric is None else final_quality(records, metric),
        time_to_target=time_to_target(plan, by_topic["quality"]),
        examples_per_second=None if window is None else window.examples_per_second,
        seconds=throughput.training_seconds(records),
        examples=throughput.examples_of(records),
        no_wait_share=None if window is None else window.no_wait_share,
        bytes_per_step=throughput.bytes_per_step(records, run.warm_up),
        peak_bytes=throughput.peak_bytes(records),
        first_losses=_first_losses(records),
        topics=by_topic,
    )


def _first_losses(run: RunRecords) -> tuple[float, ...]:
    firsts = [rank.steps[0] for rank in run.ranks if rank.steps]
    return tuple(step.loss for step in firsts if step.step == 1 and step.loss is not None)


def _outcome(run: RunRecords, seed: int, plan: Planned) -> Outcome:
    begun = {} if plan.is_single and not plan.is_under_way else {"why": UNDER_WAY if plan.is_under_way else STOPPED}
    outcome = run.outcome or (begun if run.folder.exists() else {"why": NOT_BEGUN})
    seconds = outcome.get("seconds")
    return Outcome(
        seed=seed,
        folder="." if run.folder == plan.folder else run.folder.relative_to(plan.folder).as_posix(),
        status=run.status,
        seconds=float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None,
        why=str(outcome["why"]) if outcome.get("why") else None,
        load=load_of(run),
    )


def _arm(arm: PlannedArm, runs: Sequence[RunFigures], baseline: Sequence[RunFigures], plan: Planned) -> ArmSummary:
    """Return the summary of an arm; every figure, and the curves, are of the runs that are used."""
    used = [run for run in runs if run.is_used]
    fields = {name: value for topic in topics.TOPICS for name, value in topic.fields(used).items()}
    return arm_type()(**results_of(arm, runs, baseline, plan), **fields)


def _qualities(runs: Mapping[str, Sequence[RunFigures]]) -> Mapping[str, Mapping[int, float]]:
    return {
        name: {run.seed: run.quality for run in arm_runs if run.is_used and run.quality is not None}
        for name, arm_runs in runs.items()
    }


def markdown(summary: Summary) -> str:
    """Return the summary for readers without a browser."""
    view = View(summary)
    return "\n\n".join(part for topic in topics.TOPICS for part in topic.markdown(view, topic.arms(view))) + "\n"


def tables(summary: Summary) -> dict[str, str]:
    """Return the data of every plot as CSV, by name: one row a point, all arms in one table."""
    return dict(table for topic in topics.TOPICS for table in topic.tables(summary))


def write_report(folder: Path, *, relevant: float | None = None) -> Path:
    """Read the records in `folder` and write their report there; return the path of the page.

    `relevant` as in `summarize`.

    Raises `ConfigurationError` if there is no run and no comparison.
    """
    summary = summarize(folder, relevant=relevant)
    write_summary(folder, summary)
    write_files(folder, {PAGE: page(summary)})
    return folder / PAGE


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
