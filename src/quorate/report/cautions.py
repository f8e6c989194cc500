"""Cautions: the things that a reader has to know before believing the figures."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from quorate.core.errors import ranks_in_words
from quorate.launch.run.folder import SIMULATED
from quorate.report.figures import throughput
from quorate.report.reading.planned import Planned
from quorate.report.reading.run import RunRecords
from quorate.report.reading.sound import is_count, read_json
from quorate.report.runs import RunFigures, Runs, seeds_in_words, seeds_of
from quorate.report.schema import NOT_BEGUN, UNDER_WAY, ArmSummary
from quorate.report.topics.fairness import unequal_work
from quorate.report.topics.quality import TOPIC as QUALITY
from quorate.report.topics.quality import went_wrong
from quorate.report.topics.steps import TOPIC as STEPS
from quorate.report.wording import counted, listed, seconds_in_words


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
                "only two seeds: values are shown without an interval, and no difference can be significant"
            )
        if seeds == 1:
            cautions.append("only one seed: no difference can be significant")
        if is_seeded_alike(runs):
            cautions.append(
                "the first losses of all seeds are equal: the script sets a seed of its own, so that seeds repeat one "
                "training; leave that to --seed, or pass world.seed"
            )
        unequal = unequal_work(plan, runs)
        if unequal is not None:
            cautions.append(unequal)
        cautions += [missed for arm in arms for missed in _missed(plan, arm)]
        cautions += [f"{arm.name}: no evaluation gave {metric}" for arm in arms for metric in _unseen(plan, arm)]
    return cautions + _of_clocks([run for arm_runs in runs.values() for run in arm_runs]) + _of_machine(plan)


def is_seeded_alike(runs: Runs) -> bool:
    """Return whether every arm with several seeds began all of them with the same losses, which need not be zero."""
    several = [[run.first_losses for run in arm_runs if run.is_used] for arm_runs in runs.values()]
    several = [losses for losses in several if len(losses) > 1]
    return bool(several) and all(any(losses[0]) and len(set(losses)) == 1 for losses in several)


def _of_run(plan: Planned, name: str, run: RunFigures) -> list[str]:
    which = "the run" if plan.is_single else f"{name}, seed {run.outcome.seed},"
    failed = []
    status, why = run.outcome.status, run.outcome.why
    left_out = "" if plan.is_single else "; it is left out"
    if status is None and not (plan.is_single and plan.is_under_way):
        failed.append(f"{which} has no outcome: its end was not observed, or it is still running{left_out}")
    elif status:
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
    curves = QUALITY.of(arm)
    if plan.metric is None or STEPS.of(arm) is None or (curves and curves.curves):
        return []
    return [plan.metric.name]


def _of_clocks(runs: Sequence[RunFigures]) -> list[str]:
    several = [run for run in runs if run.is_used and run.hosts > 1]
    if not several:
        return []
    wrong = max(run.clock_uncertainty for run in several)
    how = f"clocks that were compared to within {seconds_in_words(wrong)}" if math.isfinite(wrong) else "times of day"
    worst = f", at worst in {counted(len(several), 'run')}" if len(several) > 1 else ""
    return [f"arrivals on {max(run.hosts for run in several)} hosts are compared by {how}{worst}"]


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
        cautions.append("the working tree had uncommitted changes")
    return cautions


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
    states += [f"figures are of {seeds_in_words(used)}, which every arm has completed"] if apart and used else []
    if is_going_on:
        return f"the comparison is under way: {', '.join(states)}"
    folder = shlex.quote(str(plan.folder))
    return f"the comparison was stopped: {', '.join(states)}; continue with: quorate compare --continue {folder}"


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
    return ", ".join(f"{seeds_in_words(common)} of {listed(who)}" for common, who in names.items())


def fewer_than(plan: Planned, runs: Runs) -> list[str]:
    """Describe the seeds of arms that were run on some that the baseline lacks."""
    awaited = {run.seed for arm_runs in runs.values() for run in arm_runs if run.outcome.status is None}
    sentences = []
    for name, arm_runs in runs.items():
        if plan.baseline is not None and any(run.is_apart and run.seed not in awaited for run in arm_runs):
            seeds = seeds_in_words(sorted(seeds_of(arm_runs)))
            sentences.append(f"{name}: figures are of {seeds}, which {plan.baseline.name} has too")
    return sentences


def notes_of(run: RunRecords, plan: Planned, *, is_measured: bool) -> list[str]:
    """Describe what is odd about one run."""
    notes = []
    metric = None if plan.metric is None else plan.metric.name
    wrong = went_wrong(run, metric)
    if wrong is not None:
        notes.append(wrong)
    missing = set(range(run.size)) - {rank.rank for rank in run.ranks if rank.steps}
    if missing and run.has_steps:
        left = "left no steps" if len(missing) < run.size else "left no records"
        notes.append(f"{ranks_in_words(missing)} {left}")
    if run.has_steps and not is_measured:
        notes.append(f"it is too short to measure after a warm-up of {plan.warm_up_steps} steps")
    if run.has_steps and throughput.examples_of(run) is None:
        notes.append("its examples were not counted (its loader is not one of quorate.loader)")
    not_simulated = (read_json(run.folder / SIMULATED) or {}).get("why")
    return notes if not_simulated is None else [*notes, str(not_simulated)]
