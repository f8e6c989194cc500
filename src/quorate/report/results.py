"""The results of each arm: its quality, its speed and its costs beside the baseline's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Literal

from quorate.core.intervals import ratio_interval
from quorate.report.reading.planned import Planned, PlannedArm
from quorate.report.runs import RunFigures
from quorate.report.schema import Estimate
from quorate.report.statistics import NONE, Difference, difference_verdict, ratio_verdict

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


def results_of(
    arm: PlannedArm, runs: Sequence[RunFigures], baseline: Sequence[RunFigures], plan: Planned
) -> dict[str, Any]:
    """Return the fields of an arm that all have; figures are of the runs that are used.

    `runs` and `baseline` are all runs of either, in the order of the plan.
    """
    used = [run for run in runs if run.is_used]
    metric = None if plan.metric is None else plan.metric.name
    others = [] if arm.is_baseline else [run for run in baseline if run.is_used]
    return {
        "name": arm.name,
        "strategy": arm.strategy,
        "settings": arm.settings,
        "is_baseline": arm.is_baseline,
        "learning_rate_factor": arm.learning_rate_factor,
        "runs": tuple(run.outcome for run in runs),
        "seeds": tuple(run.seed for run in used),
        "alongside": _alongside(used, others),
        "quality": Estimate.of_qualities((run.quality for run in used), metric),
        "target_reached": _reached(runs, plan),
        "examples": Estimate.of_known(run.examples for run in used),
        "speedup": _ratio_estimate(_ratios(_pairs(used, others, lambda run: run.examples_per_second))),
        "target_speedup": _ratio_estimate(_ratios(_pairs(others, used, lambda run: run.time_to_target))),
        **{name: Estimate.of_known(map(attrgetter(name), used)) for name in _COMPARED},
        "differences": _differences(used, others, plan),
    }


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
