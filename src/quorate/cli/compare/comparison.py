"""The `Comparison` of a command line; checks names and numbers, and imports torch only for settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from quorate.cli.choices import check_overrides, check_strategy, check_virtual
from quorate.cli.listing import registry
from quorate.cli.names import known_as, unknown_name
from quorate.cli.options import settings_from, strategy_from
from quorate.cli.scripts import check_script, is_file
from quorate.compare.plan import Arm, Comparison, Metric, Subject
from quorate.core.errors import ConfigurationError, unknown
from quorate.report.wording import counted, listed

USUAL = "all-reduce"
"""The strategy of a comparison that names none."""
_MOST_SEEDS = 10_000


def subject_from(name: str, arguments: Sequence[str], settings: Sequence[str]) -> Subject:
    """Return the workload of that name, with `settings` as written, or else the script at that path."""
    workloads = registry("workloads")
    name = name if is_file(name) else known_as(name, "workloads")
    if name in workloads:
        if arguments:
            raise ConfigurationError(
                f"the workload {name} takes no arguments, but {' '.join(arguments)} stands after it; "
                "options go before it, its settings after --workload-set"
            )
        return Subject(
            kind="workload", name=name, settings=settings_from(settings, "--workload-set takes key=value, not")
        )
    if not is_file(name) and not (Path(name).suffix or "/" in name):
        raise unknown("workload or script", name, workloads)
    check_script(name)
    if settings:
        raise ConfigurationError(f"--workload-set is for workloads, but {name} is a script; pass it arguments instead")
    return Subject(kind="script", name=name, arguments=list(arguments))


def metric_from(subject: Subject, name: str | None, higher: bool | None) -> Metric | None:
    """Return the metric that decides: the named one, or the headline of a workload; None for a script without one."""
    if name is not None:
        higher = _usual_direction(name) if higher is None else higher
        if higher is None:
            raise ConfigurationError(f"say whether a higher or a lower {name} is better: --higher or --lower")
        return Metric(name=name, higher_is_better=higher)
    if higher is not None:
        raise ConfigurationError(f"--{'higher' if higher else 'lower'} needs --metric NAME")
    if subject.kind == "script":
        return None
    source = registry("workloads").source(subject.name)
    facts = {} if source is None else dict(source.facts)
    return Metric(
        name=ast.literal_eval(facts["headline"]), higher_is_better=ast.literal_eval(facts["higher_is_better"])
    )


def printed_name(pattern: str | None) -> str | None:
    """Return the name that a pattern of a printed metric begins with. Raises `ConfigurationError` if it has none."""
    if pattern is None:
        return None
    name = re.match(r"[A-Za-z_]\w*", pattern)
    if name is None:
        raise ConfigurationError(
            f"--metric-pattern {pattern!r} begins with no name; give the metric one: --metric NAME"
        )
    return name[0]


def _usual_direction(name: str) -> bool | None:
    """Return whether higher values are better, from the name of a metric; None where the name does not say it."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    if words & {"loss", "error", "perplexity", "ppl", "mse", "rmse", "mae", "wer", "entropy"}:
        return False
    scores = {"score", "bleu", "chrf", "reward", "iou", "map"}
    if words & {"accuracy", "acc", "top", "auc", "f", "precision", "recall", *scores}:
        return True
    return None


def arms_from(strategies: Sequence[str], baseline: str | None) -> tuple[Arm, ...]:
    """Return an arm for each strategy, `NAME` or `NAME:key=value,…`; a baseline that is none of them comes first.

    Without `baseline`, the first of several is the baseline.
    """
    arms = [_arm(text) for text in strategies or [USUAL]]
    if baseline is None:
        first = Arm.of(arms[0].strategy or "", arms[0].settings, is_baseline=len(arms) > 1)
        return (first, *arms[1:])
    against = _arm(baseline)
    names = {arm.name for arm in arms} | {*registry("strategies"), *registry("baselines")}
    if against.name not in names and against.strategy not in names:
        raise unknown_name("baseline", baseline, names, "strategies")
    others = [arm for arm in arms if arm.name != against.name]
    marked = Arm.of(against.strategy or "", against.settings, is_baseline=True)
    if len(others) == len(arms):
        return (marked, *arms)
    return tuple(marked if arm.name == against.name else arm for arm in arms)


def with_codec(text: str, codec: str) -> str:
    """Return a strategy as it is written, with a codec; `none` adds nothing."""
    return text if codec == "none" else f"{text}{',' if ':' in text else ':'}compress={codec}"


def seeds_from(text: str) -> tuple[int, ...]:
    """Return the seeds: `3` means 0 to 2; `1,2,5` are three seeds, and `7,` is one."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(re.fullmatch("[0-9]{1,18}", part) for part in parts):
        raise ConfigurationError(f'--seeds "{text}": give how many, such as 3, or which, such as 1,2,5')
    if "," in text:
        return tuple(int(part) for part in parts)
    if not 1 <= int(text) <= _MOST_SEEDS:
        most = f", and at most {_MOST_SEEDS}" if int(text) else ""
        raise ConfigurationError(f"--seeds {int(text)}: a comparison needs at least one seed{most}")
    return tuple(range(int(text)))


def factors_from(text: str) -> tuple[float, ...]:
    """Return the factors of a learning rate in `0.25,0.5,1,2,4`, in ascending order, each once."""
    try:
        factors = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise ConfigurationError(
            f'--tune-lr "{text}": give factors of the learning rate, such as 0.25,0.5,1,2,4'
        ) from None
    return tuple(factors)


def check_plan(plan: Comparison) -> None:
    """Raise `ConfigurationError` for unknown names and settings, and for those that exclude each other."""
    is_virtual = plan.world == "virtual"
    for arm in plan.arms:
        check_strategy(arm.strategy, {}, plan.workers, is_virtual=is_virtual)
    if plan.subject.kind == "workload":
        if plan.subject.name not in registry("workloads"):
            raise unknown("workload", plan.subject.name, registry("workloads"))
    else:
        check_script(plan.subject.name)
    for workers in plan.scale or (plan.workers,):
        check_overrides(plan.overrides(), workers, is_virtual=is_virtual)
    check_virtual(plan.virtual(seed=0))
    for arm in plan.arms:
        for workers in plan.scale or (plan.workers,):
            check_strategy(arm.strategy, arm.settings, workers, is_virtual=is_virtual)
    source = registry("workloads").source(plan.subject.name) if plan.subject.kind == "workload" else None
    requires = source is not None and any("required" in setting.meaning.lower() for setting in source.settings)
    if plan.subject.settings or requires:
        from quorate.core.settings import settings_for

        kind = registry("workloads").get(plan.subject.name)
        kind(**settings_for(kind, plan.subject.settings, plan.subject.name))


def in_words(plan: Comparison) -> str:
    """Return `ddp (baseline) and all-reduce on digits, 4 workers, seeds 0, 1 and 2`."""
    arms = listed([f"{arm.name} (baseline)" if arm.is_baseline else arm.name for arm in plan.arms])
    most = counted(plan.workers, "virtual worker" if plan.world == "virtual" else "worker")
    workers = listed([*map(str, plan.scale[:-1]), most])
    seeds = f"seed{'s' * (len(plan.seeds) > 1)} {listed([str(seed) for seed in plan.seeds])}"
    chosen = {"imbalance": plan.imbalance, "min step time": plan.pace, "data share": plan.share}
    changes = "".join(f", {name}: {value}" for name, value in chosen.items() if value is not None)
    where = "" if plan.reached is None else f" on {plan.reached.layout.in_words}"
    return f"{arms} on {plan.subject.name}, {workers}{where}, {seeds}{changes}"


def _arm(text: str) -> Arm:
    return Arm.of(*strategy_from(text))
