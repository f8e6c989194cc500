"""Cautions: the things that a reader has to know before believing the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from quorate.report.figures.fairness import Runs, unequal_work
from quorate.report.figures.run import RunFigures
from quorate.report.figures.side_by_side import fewer_than, unfinished
from quorate.report.reading.planned import Planned
from quorate.report.reading.sound import is_count
from quorate.report.schema import ArmSummary
from quorate.report.wording import counted, seconds_in_words


def cautions_of(plan: Planned, runs: Runs, arms: Sequence[ArmSummary]) -> list[str]:
    """Return sentences, without a full stop; the gravest first."""
    stopped = unfinished(plan, runs)
    cautions = [] if stopped is None else [stopped]
    for name, arm_runs in runs.items():
        for run in arm_runs:
            is_told = stopped is not None and run.outcome.status != 0
            cautions += [] if is_told else _of_run(plan, name, run)
    cautions += fewer_than(plan, runs)
    if not plan.is_single:
        seeds = max((len(arm.seeds) for arm in arms), default=0)
        if seeds == 2:
            cautions.append(
                "two seeds only: their values are shown without an interval, and no difference can be shown"
            )
        if seeds == 1:
            cautions.append("one seed only: no difference can be shown, whatever the figures are")
        unequal = unequal_work(plan, runs)
        if unequal is not None:
            cautions.append(unequal)
        cautions += [missed for arm in arms for missed in _missed(plan, arm)]
        cautions += [f"{arm.name}: no evaluation gave {metric}" for arm in arms for metric in _unseen(plan, arm)]
    return cautions + _of_clocks([run for arm_runs in runs.values() for run in arm_runs]) + _of_machine(plan)


def _of_run(plan: Planned, name: str, run: RunFigures) -> list[str]:
    which = "the run" if plan.is_single else f"{name}, seed {run.outcome.seed},"
    failed = []
    status, why = run.outcome.status, run.outcome.why
    left_out = "" if plan.is_single else "; it is left out"
    if status is None:
        failed.append(f"{which} has no outcome: it was not watched to its end, or is still under way{left_out}")
    elif status != 0:
        because = f": {why}" if why else ""
        failed.append(f"{which} failed with status {status}{because}{left_out}")
    elif not run.is_used and not run.is_apart:
        failed.append(f"{which} left no steps{left_out}")
    return failed + ([f"{which.rstrip(',')}: {note}" for note in run.notes] if run.is_used else [])


def _missed(plan: Planned, arm: ArmSummary) -> list[str]:
    if plan.target is None or plan.metric is None or arm.target_reached is None:
        return []
    reached, of = arm.target_reached
    if reached == of:
        return []
    target = f"{plan.metric.name} {plan.target:g}"
    return [f"{arm.name} reached the target, {target}, in {reached} of {counted(of, 'run')}"]


def _unseen(plan: Planned, arm: ArmSummary) -> list[str]:
    if plan.metric is None or arm.steps is None or arm.curves:
        return []
    return [plan.metric.name]


def _of_clocks(runs: Sequence[RunFigures]) -> list[str]:
    several = [run for run in runs if run.is_used and run.hosts > 1]
    if not several:
        return []
    wrong = max(run.clock_uncertainty for run in several)
    how = f"clocks that were compared to within {seconds_in_words(wrong)}" if math.isfinite(wrong) else "times of day"
    worst = f", at worst in {counted(len(several), 'run')}" if len(several) > 1 else ""
    return [f"arrivals on {max(run.hosts for run in several)} hosts are held side by side by {how}{worst}"]


def _of_machine(plan: Planned) -> list[str]:
    cautions = []
    cores = plan.about.get("cores")
    is_here = plan.world == "real" and plan.hosts is None
    value: Any = plan.about.get("servers")
    servers: int = value if is_count(value) else 0
    if is_here and isinstance(cores, int) and plan.workers + servers > cores:
        who = counted(plan.workers, "worker") + (f" and {counted(servers, 'server')}" if servers else "")
        cautions.append(f"{who} shared {counted(cores, 'core')}: they slowed each other down")
    git = plan.about.get("git") or {}
    if git.get("dirty"):
        cautions.append("the working tree had changes that are in no commit")
    return cautions
