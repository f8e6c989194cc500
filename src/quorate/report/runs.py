"""The runs of a comparison in figures, so that their rows need not stay in memory, and those that count together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quorate.report.reading.planned import Planned
from quorate.report.schema import Outcome
from quorate.report.wording import listed


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """One run in figures; None stands for what was not measured."""

    seed: int
    about: dict[str, Any]
    """`run.json`."""
    outcome: Outcome
    is_used: bool
    """Whether the run ended well, or is the only one, and its seed is in all arms."""
    is_apart: bool = False
    """Whether the run ended well, and other arms have none of its seed."""
    notes: tuple[str, ...]
    """Sentences about anything odd."""
    hosts: int
    """The number of hosts of its workers."""
    clock_uncertainty: float
    """The uncertainty of their clocks together at worst, in seconds; infinite if they were not compared."""
    batch: int | None
    quality: float | None
    time_to_target: float | None
    examples_per_second: float | None
    seconds: float | None
    examples: int | None
    no_wait_share: float | None
    bytes_per_step: float | None
    peak_bytes: int | None
    first_losses: tuple[float, ...]
    """The loss of the first step of each rank, where known: no update, and so no strategy, has changed them."""
    topics: Mapping[str, Any]
    """The figures of each topic, by its name."""


Runs = Mapping[str, Sequence[RunFigures]]
"""By the name of the arm."""


def of_common_seeds(plan: Planned, runs: Runs) -> dict[str, list[RunFigures]]:
    """Return `runs`, using those whose seeds every arm has had, and share with the baseline.

    If no seed has been had by every arm, as in a comparison stopped in its first one, each arm keeps all its runs.
    """
    awaited = {run.seed for arm_runs in runs.values() for run in arm_runs if run.outcome.status is None}
    if any(run.is_used and run.seed not in awaited for arm_runs in runs.values() for run in arm_runs):
        runs = {name: [_kept(run, run.seed not in awaited) for run in arm_runs] for name, arm_runs in runs.items()}
    base = set() if plan.baseline is None else seeds_of(runs[plan.baseline.name])
    return {
        name: [_kept(run, run.seed in base or not base & seeds_of(arm_runs)) for run in arm_runs]
        for name, arm_runs in runs.items()
    }


def _kept(run: RunFigures, is_kept: bool) -> RunFigures:
    return run if is_kept or not run.is_used else replace(run, is_used=False, is_apart=True)


def seeds_of(runs: Iterable[RunFigures]) -> set[int]:
    """Return the seeds of the runs that are used."""
    return {run.seed for run in runs if run.is_used}


def seeds_in_words(seeds: Sequence[int]) -> str:
    """Return `seed 1`, `seeds 1 and 2`."""
    return f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])}"
