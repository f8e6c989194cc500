"""Which runs figures that stand side by side are of: of seeds that all arms have had, and that the baseline has too."""

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
    """`runs`, of which those are used that every arm has had the seed of, and that share it with the baseline's.

    Where no seed has been had by every arm, as in a comparison stopped in its first one, each has what there is.
    """
    awaited = {run.seed for some in runs.values() for run in some if run.outcome.status is None}
    if any(run.is_used and run.seed not in awaited for some in runs.values() for run in some):
        runs = {name: [_kept(run, run.seed not in awaited) for run in some] for name, some in runs.items()}
    base = set() if plan.baseline is None else _seeds(runs[plan.baseline.name])
    return {
        name: [_kept(run, run.seed in base or not base & _seeds(some)) for run in some] for name, some in runs.items()
    }


def _kept(run: RunFigures, is_kept: bool) -> RunFigures:
    return run if is_kept or not run.is_used else replace(run, is_used=False, is_apart=True)


def _seeds(runs: Iterable[RunFigures]) -> set[int]:
    return {run.seed for run in runs if run.is_used}


def unfinished(plan: Planned, runs: Runs) -> str | None:
    """What became of each run of a comparison that has not come to its end, and how to go on; None where it has."""
    every = [(name, run) for name, some in runs.items() for run in some]
    awaited = [(name, run) for name, run in every if run.outcome.status is None]
    if plan.is_single or not awaited:
        return None
    begun = [one for one in awaited if one[1].outcome.why != NOT_BEGUN]
    never = [one for one in awaited if one[1].outcome.why == NOT_BEGUN]
    is_going_on = any(run.outcome.why == UNDER_WAY for _, run in awaited)
    said = [
        f"{counted(len(some), 'run')} {what} ({_named(some)})"
        for what, some in (("under way" if is_going_on else "stopped", begun), ("not run", never))
        if some
    ]
    failed = [f"{name}, seed {run.seed}{_because(run)}" for name, run in every if run.outcome.status]
    if failed:
        said.append(f"{counted(len(failed), 'run')} failed ({'; '.join(failed)})")
    used = sorted({run.seed for _, run in every if run.is_used})
    apart = any(run.is_apart for _, run in every)
    said += [f"figures are of {_of_seeds(used)}, which every arm has had"] if apart and used else []
    if is_going_on:
        return f"the comparison is under way: {', '.join(said)}"
    return f"the comparison was stopped: {', '.join(said)}; go on with: quorate compare --continue {_folder(plan)}"


def _folder(plan: Planned) -> str:
    return shlex.quote(str(plan.folder))


def _because(run: RunFigures) -> str:
    return f": {run.outcome.why}" if run.outcome.why else f", with status {run.outcome.status}"


def _named(runs: Sequence[tuple[str, RunFigures]]) -> str:
    """Arms that lack the same seeds are told together: `seeds 1 and 2 of ddp and quorum, seed 2 of gossip`."""
    seeds: dict[str, list[int]] = {}
    for name, run in runs:
        seeds.setdefault(name, []).append(run.seed)
    names: dict[tuple[int, ...], list[str]] = {}
    for name, some in seeds.items():
        names.setdefault(tuple(some), []).append(name)
    return ", ".join(f"{_of_seeds(some)} of {listed(who)}" for some, who in names.items())


def _of_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])}"


def fewer_than(plan: Planned, runs: Runs) -> list[str]:
    """Of arms that were run on seeds that the baseline lacks: which their figures are of."""
    awaited = {run.seed for some in runs.values() for run in some if run.outcome.status is None}
    told = []
    for name, some in runs.items():
        if plan.baseline is not None and any(run.is_apart and run.seed not in awaited for run in some):
            told.append(f"{name}: figures are of {_of_seeds(sorted(_seeds(some)))}, which {plan.baseline.name} has too")
    return told
