"""The fairness of the comparison: the equal and the different settings, and the tuning of each side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quorate.report.charts.markup import Markup, element, joined
from quorate.report.parts import NOT_MEASURED, View, figure_in_words, in_words, missing, paragraphs, table
from quorate.report.reading.planned import Planned, PlannedArm
from quorate.report.reading.run import read_run
from quorate.report.runs import RunFigures, Runs
from quorate.report.schema import Fairness, Part, Summary, Trial
from quorate.report.topic import Arms, Topic
from quorate.report.topics.quality import final_quality
from quorate.report.wording import counted, listed, seconds_in_words

LEAD = (
    "A difference is evidence only if all other settings were equal. This section lists the equal and the different "
    "ones."
)
_OF_RUNS = (
    "workers", "hosts", "world", "imbalance", "pace", "share", "seconds_limit", "omp_threads", "compute", "latency",
    "bandwidth", "host", "cores", "system", "python", "interpreter",
)  # fmt: skip
"""Keys of `run.json` in which arms may differ. Strategy, settings and learning rate are those of the plan."""
_NAME = re.compile(r"lr-(.+)-seed-(\d+)")


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
        "runs of the same seed start from the same state and are compared as a pair."
    )
    for key, words in (("imbalance", "Injected delays"), ("pace", "Injected minimum step time")):
        if plan.text(key) is not None and key not in differed:
            sentences.append(f"{words}: {plan.text(key)}, in every arm.")
    sentences.append(_tuning(plan, trials))
    if plan.warm_up_steps:
        steps = counted(plan.warm_up_steps, "step")
        sentences.append(f"The first {steps} of every worker are not part of any figure about steps.")
    sentences.append("Training time does not include evaluations.")
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
    return f"Every run trained on {amount} examples, over all workers."


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
    return f"the arms trained on different numbers of examples: {amounts} (mean per run)"


def _tuning(plan: Planned, trials: Sequence[Trial]) -> str:
    if not trials:
        return "No arm was tuned: every arm used the learning rate of the script."
    factors = {arm.name: sorted({trial.factor for trial in trials if trial.arm == arm.name}) for arm in plan.arms}
    tried = {
        name: listed([f"{factor:g}" for factor in arm_factors]) for name, arm_factors in factors.items() if arm_factors
    }
    if len(tried) == len(plan.arms) and len(set(tried.values())) == 1:
        return f"The same learning rates were tried for every arm: {next(iter(tried.values()))} times the usual one."
    return (
        "Learning rates that were tried, as multiples of the usual one: "
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
    values: dict[str, object] = {"strategy": arm.strategy, "batch": arm.batch}
    values.update({f"settings.{key}": value for key, value in arm.settings.items()})
    about: Mapping[str, Any] = next((run.about for run in runs if run.about), {})
    factor = arm.learning_rate_factor
    values["learning_rate_factor"] = about.get("learning_rate_factor") if factor is None else factor
    values.update({key: about[key] for key in _OF_RUNS if key in about})
    values.update({f"versions.{name}": version for name, version in (about.get("versions") or {}).items()})
    values.update({f"git.{name}": value for name, value in (about.get("git") or {}).items()})
    return values


def trials_of(plan: Planned) -> tuple[Trial, ...]:
    """Return the trials by arm, factor and seed; those that failed have no quality."""
    return () if plan.is_single else tuple(trial for arm in plan.arms for trial in _trials_of(plan, arm))


def _trials_of(plan: Planned, arm: PlannedArm) -> Iterator[Trial]:
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


def _body(view: View, arms: Arms[Part]) -> Iterator[Markup]:
    if view.is_single:
        yield missing("This is a single run, so there is no comparison to judge.")
        yield paragraphs(_counted(view))
        return
    yield element("h3", "Equal in all arms")
    yield _equal_facts(view)
    yield paragraphs(_counted(view))
    yield element("h3", "Different between arms")
    yield _differences(view)
    yield element("h3", "Tuning")
    yield _trials_table(view)


def _equal_facts(view: View) -> Markup:
    sentences = view.summary.fairness.equal
    if not sentences:
        return missing("The records do not say which settings were equal.")
    return element("ul", *(element("li", sentence) for sentence in sentences), class_="facts")


def _counted(view: View) -> str:
    fairness = view.summary.fairness
    seeds = f"Seed{'' if len(fairness.seeds) == 1 else 's'} {listed([str(seed) for seed in fairness.seeds])}"
    warm_up = f"the first {counted(fairness.warm_up_steps, 'step')} of every rank are not counted"
    alone = " With one seed, the variation between runs is unknown." if len(fairness.seeds) == 1 else ""
    return f"{seeds if fairness.seeds else 'No seeds'}; {warm_up}.{alone}"


def _differences(view: View) -> Markup:
    differed = view.summary.fairness.differed
    if not differed:
        return missing("Nothing else: every setting has the same value in all arms.")
    names = [arm.name for arm in view.summary.arms]
    rows = [
        [element("code", key), *(element("code", in_words(values.get(name))) for name in names)]
        for key, values in differed.items()
    ]
    return table(["setting", *names], rows)


def _trials_table(view: View) -> Markup:
    """Return a row for each arm, a column for each factor, and in the cells a line for each seed."""
    trials = view.summary.tuning
    if not trials:
        return missing("No arm was tuned: the settings were used as given.")
    factors = sorted({trial.factor for trial in trials})
    arms = list(dict.fromkeys(trial.arm for trial in trials))
    by_cell: dict[tuple[str, float], list[Trial]] = {}
    for trial in trials:
        by_cell.setdefault((trial.arm, trial.factor), []).append(trial)
    rows = [[arm, *(_cell(by_cell.get((arm, factor), [])) for factor in factors)] for arm in arms]
    quality = view.summary.metric.name if view.summary.metric else "quality"
    seeds = sorted({trial.seed for trial in trials})
    cells = f"Each cell is the {quality} at the end of a trial with {listed([f'seed {seed}' for seed in seeds])}."
    many = {sum(trial.arm == arm for trial in trials) for arm in arms}
    counts = (
        "Every arm had the same number of trials." if len(many) == 1 else "The arms had different numbers of trials."
    )
    heads = ["strategy", *(f"learning rate ×{factor:g}" for factor in factors)]
    return joined([table(heads, rows), element("p", f"{cells} {counts}", class_="note")])


def _cell(trials: Sequence[Trial]) -> Markup:
    is_chosen = any(trial.is_chosen for trial in trials)
    lines = [
        element("div", NOT_MEASURED if trial.quality is None else figure_in_words(trial.quality),
                data_value=None if trial.quality is None else repr(trial.quality))
        for trial in trials
    ]  # fmt: skip
    if is_chosen:
        lines.append(element("div", element("strong", "✓ chosen"), class_="small"))
    return joined(lines) if lines else element("span", NOT_MEASURED)


def _in_words(summary: Summary) -> str:
    fairness = summary.fairness
    lines = [f"- {sentence}" for sentence in fairness.equal]
    for key, values in fairness.differed.items():
        listed = ", ".join(f"{name} {NOT_MEASURED if value is None else value}" for name, value in values.items())
        lines.append(f"- Different: {key}: {listed}.")
    if not lines:
        steps = counted(fairness.warm_up_steps, "step")
        lines.append(
            f"A single run without a comparison; the first {steps} of every worker are warm-up and are not counted."
        )
    return "\n".join(lines)


TOPIC = Topic[None, Part](
    name="fairness",
    title="Fairness",
    lead=LEAD,
    body=_body,
    markdown=lambda view, arms: ["## Fairness", _in_words(view.summary)],
)
