"""The summary of a comparison, or of one run, from its records; and the files of its report."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from pydantic import create_model

from quorate.core.intervals import ratio_interval
from quorate.records.host_rows import Load
from quorate.report import topics
from quorate.report.cautions import cautions_of, notes_of
from quorate.report.figures import throughput
from quorate.report.figures.run import MeasuredRun
from quorate.report.page import page
from quorate.report.parts import View
from quorate.report.reading.planned import Planned, PlannedArm, planned_in
from quorate.report.reading.run import RunRecords, read_run
from quorate.report.runs import RunFigures, of_common_seeds
from quorate.report.schema import NOT_BEGUN, STOPPED, UNDER_WAY, ArmSummary, Estimate, HostLoad, Outcome, Summary
from quorate.report.statistics import NONE, Difference, difference_verdict, ratio_verdict
from quorate.report.topic import Topic
from quorate.report.topics.fairness import fairness_of, trials_of
from quorate.report.topics.quality import final_quality, time_to_target
from quorate.report.topics.reproduce import reproduce_of
from quorate.report.topics.verdict import verdict_of

SUMMARY, PAGE = "summary.json", "report.html"
LEAST_CORES, LEAST_SHARE = 0.25, 0.1
"""Other work below this number of cores, or below this share of them, is what every system does beside a run."""
_AVERAGED_OVER = 60.0
"""The seconds of a load average: in a shorter run it is that of the time before."""
_Figure = Callable[[RunFigures], float | None]
_Kind = Literal["ratio", "difference"]
_COMPARED: dict[str, tuple[_Kind, bool]] = {
    "time_to_target": ("ratio", False),
    "examples_per_second": ("ratio", True),
    "seconds": ("ratio", False),
    "no_wait_share": ("difference", True),
    "bytes_per_step": ("ratio", False),
    "peak_bytes": ("ratio", False),
}
"""By field of `ArmSummary` and of a run's figures: the kind of comparison, and whether more is better."""


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
    """Return the summary of an arm; every figure, and the curves, are of the runs that are used.

    `runs` and `baseline` are all runs of either, in the order of the plan.
    """
    used = [run for run in runs if run.is_used]
    metric = None if plan.metric is None else plan.metric.name
    others = [] if arm.is_baseline else [run for run in baseline if run.is_used]
    fields = {name: value for topic in topics.TOPICS for name, value in topic.fields(used).items()}
    return arm_type()(
        name=arm.name,
        strategy=arm.strategy,
        settings=arm.settings,
        is_baseline=arm.is_baseline,
        learning_rate_factor=arm.learning_rate_factor,
        runs=tuple(run.outcome for run in runs),
        seeds=tuple(run.seed for run in used),
        alongside=_alongside(used, others),
        quality=Estimate.of_qualities((run.quality for run in used), metric),
        target_reached=_reached(runs, plan),
        examples=Estimate.of_known(run.examples for run in used),
        speedup=_ratio_estimate(_ratios(_pairs(used, others, lambda run: run.examples_per_second))),
        target_speedup=_ratio_estimate(_ratios(_pairs(others, used, lambda run: run.time_to_target))),
        differences=_differences(used, others, plan),
        **fields | {name: Estimate.of_known(map(attrgetter(name), used)) for name in _COMPARED},
    )


def _reached(runs: Sequence[RunFigures], plan: Planned) -> tuple[int, int] | None:
    """Count runs that reached the target and runs that ended; failed runs have not, runs left out do not count."""
    ended = [run for run in runs if not run.is_apart and (run.outcome.status is not None or run.is_used)]
    if plan.target is None or not ended:
        return None
    return sum(run.is_used and run.time_to_target is not None for run in ended), len(ended)


def _alongside(runs: Sequence[RunFigures], others: Sequence[RunFigures]) -> dict[str, float]:
    """Return the baseline's means over the seeds of `runs`, if it has more; by field."""
    seeds = {run.seed for run in runs}
    common = [run for run in others if run.seed in seeds]
    if not common or len(common) == len(others):
        return {}
    means = {
        name: Estimate.of_known(map(attrgetter(name), common), least=-math.inf) for name in ("quality", *_COMPARED)
    }
    return {name: mean.mean for name, mean in means.items() if mean is not None}


def _ratio_estimate(ratios: Sequence[float]) -> Estimate | None:
    if not ratios:
        return None
    interval = ratio_interval(ratios)
    return Estimate(mean=interval.mean, low=interval.low, high=interval.high, values=tuple(ratios))


def _pairs(runs: Sequence[RunFigures], others: Sequence[RunFigures], figure: _Figure) -> list[tuple[float, float]]:
    theirs = {run.seed: figure(run) for run in others}
    pairs = [(figure(run), theirs.get(run.seed)) for run in runs]
    return [(own, other) for own, other in pairs if own is not None and other is not None]


def _ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [own / other for own, other in pairs if own > 0.0 and other > 0.0]


def _differences(runs: Sequence[RunFigures], others: Sequence[RunFigures], plan: Planned) -> dict[str, Difference]:
    """Return the verdicts by field: those that both sides have, and that mean something."""
    verdicts: dict[str, Difference] = {}
    if plan.metric is not None:
        pairs = _pairs(runs, others, lambda run: run.quality)
        # A run without a number at its end diverged: to leave it out must not make the rest look good.
        is_whole = all(run.quality is not None for run in (*runs, *others))
        if pairs:
            more = plan.metric.higher_is_better
            verdicts["quality"] = (
                difference_verdict(pairs, higher_is_better=more, relevant=plan.relevant) if is_whole else NONE
            )
    for name, (kind, more) in _COMPARED.items():
        pairs = _pairs(runs, others, attrgetter(name))
        if not pairs or (name == "seconds" and plan.equal != "examples"):
            continue
        if name == "time_to_target" and len(pairs) < max(len(runs), len(others)):
            verdicts[name] = NONE  # a miss is not a number: the rest alone would say too much
        elif kind == "ratio" and len(_ratios(pairs)) == len(pairs):
            verdicts[name] = ratio_verdict(pairs, higher_is_better=more, relevant=plan.relevant)
        else:
            verdicts[name] = difference_verdict(pairs, higher_is_better=more, relevant=plan.relevant)
    return verdicts


def _qualities(runs: Mapping[str, Sequence[RunFigures]]) -> Mapping[str, Mapping[int, float]]:
    return {
        name: {run.seed: run.quality for run in arm_runs if run.is_used and run.quality is not None}
        for name, arm_runs in runs.items()
    }


def load_of(run: RunRecords) -> HostLoad | None:
    """Return the load of the host with the most other work; None unless every worker there recorded it."""
    ranks_by_host: dict[object, list[Load | None]] = {}
    for rank in run.ranks:
        sound = [load for load in rank.loads if load.seconds > 0.0 and load.cores]
        ranks_by_host.setdefault(rank.start.get("host"), []).append(sound[-1] if sound else None)
    hosts = [
        _of_host(loads)
        for ranks in ranks_by_host.values()
        if len(loads := [load for load in ranks if load is not None]) == len(ranks)
    ]
    return max(hosts, key=lambda host: (host.is_busy, (host.other or 0.0) / host.cores), default=None)


def _of_host(loads: Sequence[Load]) -> HostLoad:
    longest = max(loads, key=lambda load: load.seconds)
    used = sum(load.cpu_seconds for load in loads) / longest.seconds
    other = None
    if longest.busy_seconds is not None:
        other = max(0.0, longest.busy_seconds / longest.seconds - used)
    elif longest.load_average is not None and longest.seconds >= _AVERAGED_OVER:
        other = max(0.0, longest.load_average - len(loads))
    least = max(LEAST_CORES, LEAST_SHARE * longest.cores)
    return HostLoad(
        cores=longest.cores,
        used=used,
        other=other,
        load_average=longest.load_average,
        pressure=longest.pressure,
        is_busy=other is not None and other >= least and other + len(loads) > longest.cores,
    )


def other_work_in_words(outcomes: Iterable[Outcome]) -> str | None:
    """Return `the machine was busy with other work (1.6 of 2 cores) in 2 of 9 runs`; None if it was not."""
    loads = [outcome.load for outcome in outcomes if outcome.status is not None or outcome.load is not None]
    busy = [load for load in loads if load is not None and load.is_busy]
    if not busy:
        return None
    most = max(busy, key=lambda load: (load.other or 0.0) / load.cores)
    runs = "" if len(loads) == 1 else f" in {len(busy)} of {len(loads)} runs"
    at_most = "at most " if len(busy) > 1 else ""
    return f"the machine was busy with other work ({at_most}{most.other:.1f} of {most.cores} cores){runs}"


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
