"""The search for learning rates: every run of it, and its result."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quorate.report.figures.quality import final_quality
from quorate.report.reading.planned import Planned, PlannedArm
from quorate.report.reading.run import read_run
from quorate.report.schema import Trial

_NAME = re.compile(r"lr-(.+)-seed-(\d+)")


def trials_of(plan: Planned) -> tuple[Trial, ...]:
    """Return the trials by arm, factor and seed; those that failed have no quality."""
    return () if plan.is_single else tuple(trial for arm in plan.arms for trial in _of_arm(plan, arm))


def _of_arm(plan: Planned, arm: PlannedArm) -> Iterator[Trial]:
    folders = []
    for folder in (plan.folder / arm.name / "tuning").glob("lr-*-seed-*"):
        named = _NAME.fullmatch(folder.name)
        factor = None if named is None else _number(named[1])
        if named is not None and factor is not None:
            folders.append((factor, int(named[2]), folder))
    for factor, seed, folder in sorted(folders):
        run = read_run(folder, only=(0,))
        is_well = run.status == 0 and plan.metric is not None
        yield Trial(
            arm=arm.name,
            factor=factor,
            seed=seed,
            quality=final_quality(run, plan.metric.name) if is_well and plan.metric is not None else None,
            is_chosen=factor == arm.learning_rate_factor,
        )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
