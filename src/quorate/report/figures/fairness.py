"""The equal and the different settings of arms, as far as plan and records show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quorate.report.figures.run import RunFigures
from quorate.report.reading.planned import Planned, PlannedArm
from quorate.report.schema import Fairness, Trial
from quorate.report.wording import counted, listed, seconds_in_words

Runs = Mapping[str, Sequence[RunFigures]]
"""By the name of the arm."""

_OF_RUNS = (
    "workers", "hosts", "world", "imbalance", "pace", "share", "seconds_limit", "omp_threads", "compute", "latency",
    "bandwidth", "host", "cores", "system", "python", "interpreter",
)  # fmt: skip
"""Keys of `run.json` in which arms may differ. Strategy, settings and learning rate are those of the plan."""


def fairness_of(plan: Planned, runs: Runs, trials: Sequence[Trial]) -> Fairness:
    """Return the fairness of a comparison; `runs` are all that left anything."""
    return Fairness(
        equal=tuple(_equal(plan, runs, trials)),
        differed=_differed(plan, runs),
        warm_up_steps=plan.warm_up_steps,
        seeds=_seeds(plan, runs),
    )


def _equal(plan: Planned, runs: Runs, trials: Sequence[Trial]) -> list[str]:
    if plan.is_single:
        return []
    sentences = []
    differed = _differed(plan, runs)
    if not differed.keys() & {"workers", "hosts", "host"}:
        sentences.append(f"Every arm had {counted(plan.workers, 'worker')} {_where(plan)}.")
    work = _work(plan, runs)
    if work is not None:
        sentences.append(work)
    seeds = _seeds(plan, runs)
    sentences.append(
        f"Every arm was run with the seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])}; "
        "runs of one seed begin alike, and are compared as a pair."
    )
    for key, words in (("imbalance", "Injected lateness"), ("pace", "Injected pace")):
        if plan.text(key) is not None and key not in differed:
            sentences.append(f"{words}: {plan.text(key)}, in every arm.")
    sentences.append(_tuning(plan, trials))
    if plan.warm_up_steps:
        steps = counted(plan.warm_up_steps, "step")
        sentences.append(f"The first {steps} of every worker are left out of every figure about steps.")
    sentences.append("Evaluation is no training time.")
    return sentences


def _seeds(plan: Planned, runs: Runs) -> tuple[int, ...]:
    awaited = {run.seed for arm_runs in runs.values() for run in arm_runs if run.outcome.status is None}
    return tuple(seed for seed in plan.seeds if seed not in awaited) or plan.seeds


def _where(plan: Planned) -> str:
    if plan.world == "virtual":
        return "in one virtual world"
    if plan.hosts is not None:
        return f"on the same hosts, {plan.hosts}"
    cores = plan.about.get("cores")
    return "on the same machine" + (f" with {counted(cores, 'core')}" if isinstance(cores, int) else "")


def _work(plan: Planned, runs: Runs) -> str | None:
    """Return the sentence about equal work; None where none was equal, or the records show otherwise."""
    if plan.equal == "seconds":
        seconds = plan.about.get("seconds")
        return None if seconds is None else f"Every run trained for {seconds_in_words(seconds)}."
    if plan.equal != "examples" or unequal_work(plan, runs):
        return None
    counts = _examples(runs)
    if not counts:
        return None
    low, high = min(counts), max(counts)
    amount = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"Every run trained on {amount} examples, counted over all workers."


def _examples(runs: Runs) -> list[int]:
    return [run.examples for arm_runs in runs.values() for run in arm_runs if run.is_used and run.examples is not None]


def unequal_work(plan: Planned, runs: Runs) -> str | None:
    """Return a sentence if examples were to be equal, and differ by more than a batch per worker; else None."""
    if plan.equal != "examples" or plan.is_single:
        return None
    means = {}
    for name, arm_runs in runs.items():
        counts = _examples({name: arm_runs})
        if counts:
            means[name] = sum(counts) / len(counts)
    batch = max((run.batch for arm_runs in runs.values() for run in arm_runs if run.batch is not None), default=0)
    if not means or max(means.values()) - min(means.values()) <= batch * plan.workers:
        return None
    amounts = listed([f"{name} {amount:,.0f}" for name, amount in means.items()])
    return f"the arms did not train on equally many examples: {amounts} (mean per run)"


def _tuning(plan: Planned, trials: Sequence[Trial]) -> str:
    if not trials:
        return "No arm was tuned: no learning rates were tried out."
    factors = {arm.name: sorted({trial.factor for trial in trials if trial.arm == arm.name}) for arm in plan.arms}
    tried = {
        name: listed([f"{factor:g}" for factor in arm_factors]) for name, arm_factors in factors.items() if arm_factors
    }
    if len(tried) == len(plan.arms) and len(set(tried.values())) == 1:
        return f"For every arm the same learning rates were tried: {next(iter(tried.values()))} times the usual one."
    return (
        "Learning rates tried, as factors of the usual one: "
        + "; ".join(f"{name} {tried.get(name, 'none')}" for name in factors)
        + "."
    )


def _differed(plan: Planned, runs: Runs) -> dict[str, dict[str, object]]:
    values = {arm.name: _of_arm(arm, runs.get(arm.name, ())) for arm in plan.arms}
    keys = dict.fromkeys(key for arm_values in values.values() for key in arm_values)
    by_key = {key: {name: arm_values.get(key) for name, arm_values in values.items()} for key in keys}
    return {key: by_arm for key, by_arm in by_key.items() if len({repr(value) for value in by_arm.values()}) > 1}


def _of_arm(arm: PlannedArm, runs: Sequence[RunFigures]) -> dict[str, object]:
    """Return everything that could differ, by dotted key; of the arm's first run that left a `run.json`."""
    values: dict[str, object] = {"strategy": arm.strategy}
    values.update({f"settings.{key}": value for key, value in arm.settings.items()})
    about: Mapping[str, Any] = next((run.about for run in runs if run.about), {})
    factor = arm.learning_rate_factor
    values["learning_rate_factor"] = about.get("learning_rate_factor") if factor is None else factor
    values.update({key: about[key] for key in _OF_RUNS if key in about})
    values.update({f"versions.{name}": version for name, version in (about.get("versions") or {}).items()})
    values.update({f"git.{name}": value for name, value in (about.get("git") or {}).items()})
    return values
