"""One arm of a comparison, from the figures of its runs and of the baseline's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Literal, TypeVar

from quorate.report.figures.goodput import Goodput
from quorate.report.figures.merges import merges_summary
from quorate.report.figures.noise import noise_summary
from quorate.report.figures.outer import outer_summary
from quorate.report.figures.rounds import RoundFigures
from quorate.report.figures.run import RunFigures
from quorate.report.figures.servers import servers_summary
from quorate.report.figures.statistics import difference_verdict, mean_interval, ratio_interval, ratio_verdict
from quorate.report.figures.time_use import step_times
from quorate.report.reading.planned import Planned, PlannedArm
from quorate.report.schema import ArmSummary, Change, Difference, Estimate, GoodputSummary, Replicas, RoundsSummary

T = TypeVar("T")
Figure = Callable[[RunFigures], float | None]
Kind = Literal["ratio", "difference"]

_COMPARED: dict[str, tuple[Kind, bool]] = {
    "time_to_target": ("ratio", False),
    "examples_per_second": ("ratio", True),
    "seconds": ("ratio", False),
    "no_wait_share": ("difference", True),
    "bytes_per_step": ("ratio", False),
    "peak_bytes": ("ratio", False),
}
"""By field of `ArmSummary` and of a run's figures: the kind of comparison, and whether more is better."""


def arm_of(
    arm: PlannedArm,
    runs: Sequence[RunFigures],
    baseline: Sequence[RunFigures],
    plan: Planned,
    edges: Sequence[float],
) -> ArmSummary:
    """Return the summary of an arm; every figure, and the curves, are of the runs that are used.

    Args:
        runs, baseline: All runs of either, in the order of the plan.
        edges: The edges of the histogram's bins.
    """
    used = [run for run in runs if run.is_used]
    others = [] if arm.is_baseline else [run for run in baseline if run.is_used]
    first = next((run for run in used if run.arrival is not None), used[0] if used else None)
    lengths = sorted(length for run in used for length in run.lengths)
    totals = [sum(column) for column in zip(*(run.totals for run in used), strict=True)]
    speeds = _ratios(_pairs(used, others, lambda run: run.examples_per_second))
    times = _ratios(_pairs(others, used, lambda run: run.time_to_target))
    return ArmSummary(
        name=arm.name,
        strategy=arm.strategy,
        settings=arm.settings,
        is_baseline=arm.is_baseline,
        learning_rate_factor=arm.learning_rate_factor,
        runs=tuple(run.outcome for run in runs),
        seeds=tuple(run.seed for run in used),
        alongside=_alongside(used, others),
        quality=_estimate(used, lambda run: run.quality, least=-math.inf),
        target_reached=_reached(runs, plan),
        examples=_estimate(used, lambda run: run.examples),
        speedup=_ratio_estimate(speeds),
        target_speedup=_ratio_estimate(times),
        **{name: _estimate(used, attrgetter(name)) for name in _COMPARED},
        differences=_differences(used, others, plan),
        steps=step_times(lengths, totals, edges),
        curves=tuple(run.curve for run in used if run.curve is not None),
        losses=tuple(run.losses for run in used if run.losses is not None),
        arrival=None if first is None else first.arrival,
        timeline=() if first is None else first.timeline,
        marks=() if first is None else first.marks,
        rounds=_rounds([run.rounds for run in used if run.rounds is not None], _changes(used)),
        merges=merges_summary([run.merges for run in used if run.merges is not None]),
        outer=outer_summary([run.outer for run in used]),
        noise=noise_summary([run.noise for run in used if run.noise is not None]),
        servers=servers_summary([run.servers for run in used if run.servers is not None]),
        memory=next((run.memory for run in used if run.memory is not None), None),
        exclusions=next((run.exclusions for run in used if run.exclusions is not None), None),
        layers=next((run.layers for run in used if run.layers is not None), None),
        stages=next((run.stages for run in used if run.stages is not None), None),
        replicas=_replicas(used),
        faults=tuple(fault for run in used for fault in run.faults),
        joined=tuple(joining for run in used for joining in run.joined),
        goodput=_goodput([run.goodput for run in used if run.goodput is not None]),
    )


def _goodput(runs: Sequence[Goodput]) -> GoodputSummary | None:
    if not runs:
        return None
    return GoodputSummary(
        share=_mean([run.share for run in runs]),
        useful=_mean([run.useful for run in runs]),
        lost=_mean([run.lost for run in runs]),
        possible=_mean([run.possible for run in runs]),
        step_seconds=_mean([run.step_seconds for run in runs]),
    )


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
    means = {name: _estimate(common, attrgetter(name), least=-math.inf) for name in ("quality", *_COMPARED)}
    return {name: mean.mean for name, mean in means.items() if mean is not None}


def _estimate(
    runs: Sequence[T], figure: Callable[[T], float | None], *, least: float = 0.0, most: float = math.inf
) -> Estimate | None:
    """Return the mean over the runs that have the figure; an interval does not reach beyond possible values."""
    values = [value for run in runs if (value := figure(run)) is not None]
    return _mean(values, least=least, most=most) if values else None


def _mean(values: Sequence[float], *, least: float = 0.0, most: float = math.inf) -> Estimate:
    interval = mean_interval(values)
    low = None if interval.low is None else max(interval.low, least)
    high = None if interval.high is None else min(interval.high, most)
    return Estimate(mean=interval.mean, low=low, high=high, values=tuple(values))


def _changes(runs: Sequence[RunFigures]) -> tuple[Change, ...]:
    return tuple(
        Change(seed=run.seed, number=change.number + 1, settings=dict(change.settings or {}), why=change.why)
        for run in runs
        if run.rounds is not None
        for change in run.rounds.changed
    )


def _rounds(runs: Sequence[RoundFigures], changes: tuple[Change, ...]) -> RoundsSummary | None:
    if not runs:
        return None
    contributors = sum((run.contributors for run in runs), Counter[int]())
    staleness = sum((run.staleness for run in runs), Counter[int]())
    ranks = sum((run.ranks for run in runs), Counter[int]())
    return RoundsSummary(
        count=_mean([run.count for run in runs]),
        per_second=_estimate(runs, lambda run: run.per_second),
        contributors=_listed(contributors),
        contributors_mean=_centre(contributors),
        live=(min(run.live[0] for run in runs), max(run.live[1] for run in runs)),
        fresh_share=_mean([run.fresh_share for run in runs], most=1.0),
        staleness=_listed(staleness),
        staleness_mean=_centre(staleness),
        effective_batch=_estimate(runs, lambda run: run.effective_batch),
        rank_shares=tuple(count / ranks.total() for count in _listed(ranks, max(run.size for run in runs))),
        waiting_share=_estimate(runs, lambda run: run.waiting, most=1.0),
        waiting_in_step=_estimate(runs, lambda run: run.waiting_in_step, most=1.0),
        changes=changes,
    )


def _replicas(runs: Sequence[RunFigures]) -> Replicas | None:
    distances = [run.distance for run in runs if run.distance is not None]
    qualities = [run.replica_curve for run in runs if run.replica_curve is not None]
    if not distances:
        return None
    return Replicas(
        distance=tuple(distances),
        last_distance=_mean([curve.quality[-1] for curve in distances]),
        quality=tuple(qualities),
        last_quality=_estimate(qualities, lambda curve: curve.quality[-1], least=-math.inf),
    )


def _listed(counts: Counter[int], size: int = 0) -> tuple[int, ...]:
    """Return the counts by number, from 0 on; at least `size` of them."""
    return tuple(counts[number] for number in range(max(size, max(counts) + 1)))


def _centre(counts: Counter[int]) -> float:
    return sum(number * count for number, count in counts.items()) / counts.total()


def _ratio_estimate(ratios: Sequence[float]) -> Estimate | None:
    if not ratios:
        return None
    interval = ratio_interval(ratios)
    return Estimate(mean=interval.mean, low=interval.low, high=interval.high, values=tuple(ratios))


def _pairs(runs: Sequence[RunFigures], others: Sequence[RunFigures], figure: Figure) -> list[tuple[float, float]]:
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
                difference_verdict(pairs, higher_is_better=more) if is_whole else "no difference shown"
            )
    for name, (kind, more) in _COMPARED.items():
        pairs = _pairs(runs, others, attrgetter(name))
        if not pairs or (name == "seconds" and plan.equal != "examples"):
            continue
        if name == "time_to_target" and len(pairs) < max(len(runs), len(others)):
            verdicts[name] = "no difference shown"  # a miss is not a number: the rest alone would say too much
        elif kind == "ratio" and len(_ratios(pairs)) == len(pairs):
            verdicts[name] = ratio_verdict(pairs, higher_is_better=more)
        else:
            verdicts[name] = difference_verdict(pairs, higher_is_better=more)
    return verdicts
