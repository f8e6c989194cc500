"""The runs that are compared side by side: of seeds that all arms have had, and that the baseline has too."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from quorate.report.figures.run import RunFigures
from quorate.report.reading.planned import Planned
from quorate.report.schema import NOT_BEGUN, UNDER_WAY
from quorate.report.wording import counted, listed

Runs = Mapping[str, Sequence[RunFigures]]
"""By the name of the arm."""


def of_common_seeds(plan: Planned, runs: Runs) -> dict[str, list[RunFigures]]:
    """Return `runs`, using those whose seeds every arm has had, and share with the baseline.

    If no seed has been had by every arm, as in a comparison stopped in its first one, each arm keeps all its runs.
    """
    awaited = {run.seed for arm_runs in runs.values() for run in arm_runs if run.outcome.status is None}
    if any(run.is_used and run.seed not in awaited for arm_runs in runs.values() for run in arm_runs):
        runs = {name: [_kept(run, run.seed not in awaited) for run in arm_runs] for name, arm_runs in runs.items()}
    base = set() if plan.baseline is None else _seeds(runs[plan.baseline.name])
    return {
        name: [_kept(run, run.seed in base or not base & _seeds(arm_runs)) for run in arm_runs]
        for name, arm_runs in runs.items()
    }


def _kept(run: RunFigures, is_kept: bool) -> RunFigures:
    return run if is_kept or not run.is_used else replace(run, is_used=False, is_apart=True)


def _seeds(runs: Iterable[RunFigures]) -> set[int]:
    return {run.seed for run in runs if run.is_used}


def unfinished(plan: Planned, runs: Runs) -> str | None:
    """Describe each unfinished run of a comparison, and how to go on; None if all have ended."""
    pairs = [(name, run) for name, arm_runs in runs.items() for run in arm_runs]
    awaited = [(name, run) for name, run in pairs if run.outcome.status is None]
    if plan.is_single or not awaited:
        return None
    begun = [item for item in awaited if item[1].outcome.why != NOT_BEGUN]
    never = [item for item in awaited if item[1].outcome.why == NOT_BEGUN]
    is_going_on = any(run.outcome.why == UNDER_WAY for _, run in awaited)
    states = [
        f"{counted(len(items), 'run')} {state} ({_named(items)})"
        for state, items in (("under way" if is_going_on else "stopped", begun), ("not run", never))
        if items
    ]
    failed = [f"{name}, seed {run.seed}{_because(run)}" for name, run in pairs if run.outcome.status]
    if failed:
        states.append(f"{counted(len(failed), 'run')} failed ({'; '.join(failed)})")
    used = sorted({run.seed for _, run in pairs if run.is_used})
    apart = any(run.is_apart for _, run in pairs)
    states += [f"figures are of {_of_seeds(used)}, which every arm has had"] if apart and used else []
    if is_going_on:
        return f"the comparison is under way: {', '.join(states)}"
    return f"the comparison was stopped: {', '.join(states)}; go on with: quorate compare --continue {_folder(plan)}"


def _folder(plan: Planned) -> str:
    return shlex.quote(str(plan.folder))


def _because(run: RunFigures) -> str:
    return f": {run.outcome.why}" if run.outcome.why else f", with status {run.outcome.status}"


def _named(runs: Sequence[tuple[str, RunFigures]]) -> str:
    """Name arms that lack the same seeds together: `seeds 1 and 2 of ddp and quorum, seed 2 of gossip`."""
    seeds: dict[str, list[int]] = {}
    for name, run in runs:
        seeds.setdefault(name, []).append(run.seed)
    names: dict[tuple[int, ...], list[str]] = {}
    for name, arm_seeds in seeds.items():
        names.setdefault(tuple(arm_seeds), []).append(name)
    return ", ".join(f"{_of_seeds(common)} of {listed(who)}" for common, who in names.items())


def _of_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])}"


def fewer_than(plan: Planned, runs: Runs) -> list[str]:
    """Describe the seeds of arms that were run on some that the baseline lacks."""
    awaited = {run.seed for arm_runs in runs.values() for run in arm_runs if run.outcome.status is None}
    sentences = []
    for name, arm_runs in runs.items():
        if plan.baseline is not None and any(run.is_apart and run.seed not in awaited for run in arm_runs):
            sentences.append(
                f"{name}: figures are of {_of_seeds(sorted(_seeds(arm_runs)))}, which {plan.baseline.name} has too"
            )
    return sentences
