"""The speed-up of more workers in two parts, time per pass times passes to the target: the schema, and pure functions.

speed-up(n) = T(n0) / T(n) with T = (seconds per pass) x (passes to the target), so it is the product of two ratios. The
first suffers where workers wait, bytes move, or each computes slower; the second where the batch grows and each example
teaches less. `losses` divide the time of n workers that n / n0 times the speed would have saved. Of `summary.json`, a
value that is not known is null, never 0. Times are seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from quorate.core.gradient_noise import example_factor
from quorate.report.schema import Part

FORMAT = 1
"""Rises when a field changes its meaning or goes away."""
Regime = Literal["weak", "strong"]
"""The constant as workers are added: `weak`, the batch of each worker; `strong`, the batch of all together."""
Limit = Literal["computing", "waiting", "wire", "batch"]
"""The causes that keep a number of workers from being as many times as fast."""
NAMED = 0.1
"""The share of the time from which on a loss is said to limit the speed-up."""
WORTH = 0.5
"""The least gain from more workers worth having, as a share of the best possible gain."""


class ScalingRow(Part):
    """One number of workers. Comparisons are with the fewest workers of the same regime."""

    regime: Regime
    workers: int
    is_simulated: bool
    """Whether times are simulated, and passes foreseen from the noise of gradients."""
    seeds: int
    """Runs that ended well."""
    batch: float | None
    """Examples of a step, of all workers."""
    examples_per_second: float | None
    pass_seconds: float | None
    """Seconds of one pass."""
    passes: float | None
    """Passes to the target."""
    target_seconds: float | None
    """`pass_seconds` times `passes`."""
    time_speedup: float | None
    """Time per pass with the fewest workers over that with these."""
    pass_speedup: float | None
    """Passes to the target with the fewest over those with these: below 1 where a larger batch needs more."""
    speedup: float | None
    """The product of both."""
    efficiency: float | None
    """The speed-up over the factor of workers; of the time alone, if passes are not known."""
    step: dict[str, float]
    """Mean seconds of a step by part: `compute` (and all that a worker does by itself), `waiting` (for others),
    `communication` (bytes that move); empty if it is not known."""
    losses: dict[Limit, float]
    """The shares of its time that this number of workers loses against the fewest, by cause."""
    limit: Limit | None
    """The greatest of these; null if all are below a tenth."""
    worker_seconds: float | None
    """Workers times `target_seconds` (of one pass, if passes are not known)."""
    cost: float | None
    """The price of these."""


class ScalingSummary(Part):
    """The summary of all numbers of workers."""

    format: int = FORMAT
    title: str
    world: Literal["real", "virtual"]
    strategy: str
    verdict: str
    """One sentence."""
    warnings: tuple[str, ...]
    target: str | None
    """The target of passes, in words: `top1 0.93`."""
    pass_examples: float
    """Examples of a pass."""
    pass_words: str
    """The meaning of a pass."""
    price: float | None
    """The price of a worker and hour."""
    rows: tuple[ScalingRow, ...]
    """Regime by regime, in order of workers."""
    command: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of one number of workers."""

    regime: Regime
    workers: int
    is_simulated: bool = False
    rates: Sequence[float] = ()
    """Examples per second, by seed."""
    examples: Sequence[float] = ()
    """Examples to the target, by seed; of the runs that reached it."""
    batch: float | None = None
    """Examples of a step of one worker."""
    step: Mapping[str, float]
    """See `ScalingRow.step`."""
    noise: float | None = None
    """The noise scale, in gradients of one worker."""


@dataclass(frozen=True)
class _Known:
    """The means over seeds."""

    of: Measured
    pass_seconds: float | None
    passes: float | None


def rows_of(measured: Sequence[Measured], pass_examples: float, price: float | None) -> tuple[ScalingRow, ...]:
    """Return the rows regime by regime. `price` is that of a worker and hour."""
    rows: list[ScalingRow] = []
    for regime in dict.fromkeys(entry.regime for entry in measured):
        of_regime = sorted((entry for entry in measured if entry.regime == regime), key=lambda entry: entry.workers)
        means = [_known(entry, of_regime, pass_examples) for entry in of_regime]
        rows += [_row(mean, means[0], pass_examples, price) for mean in means]
    return tuple(rows)


def _known(entry: Measured, of_regime: Sequence[Measured], pass_examples: float) -> _Known:
    seconds = pass_examples / statistics.fmean(entry.rates) if entry.rates else None
    examples = statistics.fmean(entry.examples) if entry.examples else _foreseen(entry, of_regime)
    return _Known(entry, seconds, None if examples is None else examples / pass_examples)


def _foreseen(entry: Measured, of_regime: Sequence[Measured]) -> float | None:
    """Predict the examples to the target from those of the most measured workers and the noise of their gradients."""
    if not entry.is_simulated:
        return None
    most = max((x for x in of_regime if not x.is_simulated), key=lambda x: x.workers, default=None)
    if most is None or not most.examples or most.noise is None:
        return None
    if most.noise <= 0:
        return statistics.fmean(most.examples) * entry.workers / most.workers
    ratio = example_factor(most.noise, entry.workers) / example_factor(most.noise, most.workers)
    return statistics.fmean(most.examples) * ratio


def _row(mean: _Known, first: _Known, pass_examples: float, price: float | None) -> ScalingRow:
    of, times = mean.of, mean.of.workers / first.of.workers
    time = _ratio(first.pass_seconds, mean.pass_seconds)
    passes = _ratio(first.passes, mean.passes)
    both = None if time is None or passes is None else time * passes
    losses = _losses(mean, first, time, times)
    limit = max(losses, key=lambda name: losses[name], default=None)
    to_target = None if mean.pass_seconds is None or mean.passes is None else mean.pass_seconds * mean.passes
    spent = mean.pass_seconds if mean.passes is None else to_target
    worker_seconds = None if spent is None else of.workers * spent
    gained = time if both is None else both
    return ScalingRow(
        regime=of.regime,
        workers=of.workers,
        is_simulated=of.is_simulated,
        seeds=len(of.rates),
        batch=None if of.batch is None else of.batch * of.workers,
        examples_per_second=None if mean.pass_seconds is None else pass_examples / mean.pass_seconds,
        pass_seconds=mean.pass_seconds,
        passes=mean.passes,
        target_seconds=to_target,
        time_speedup=time,
        pass_speedup=passes,
        speedup=both,
        efficiency=None if gained is None else gained / times,
        step=dict(of.step),
        losses=losses,
        limit=limit if limit is not None and losses[limit] >= NAMED else None,
        worker_seconds=worker_seconds,
        cost=None if worker_seconds is None or price is None else worker_seconds / 3600 * price,
    )


def _ratio(first: float | None, other: float | None) -> float | None:
    return first / other if first is not None and other else None


def _losses(mean: _Known, first: _Known, time: float | None, times: float) -> dict[Limit, float]:
    """Return the lost shares of the time, and of the passes.

    Of the time per pass, the loss is beyond that of the fewest workers over the factor of workers, divided by how much
    longer each part of a step takes for an example; of the passes, it is beyond those of the fewest.
    """
    losses: dict[Limit, float] = {}
    if mean.of.workers == first.of.workers:
        return losses
    if mean.passes and first.passes:
        losses["batch"] = max(0.0, 1 - first.passes / mean.passes)
    if time is None or not mean.of.step or not first.of.step or not mean.of.batch or not first.of.batch:
        return losses
    lost = max(0.0, 1 - time / times)
    names: dict[str, Limit] = {"compute": "computing", "waiting": "waiting", "communication": "wire"}
    more = {
        limit: max(0.0, mean.of.step.get(name, 0.0) / mean.of.batch - first.of.step.get(name, 0.0) / first.of.batch)
        for name, limit in names.items()
    }
    whole = sum(more.values())
    return {**losses, **{limit: lost * value / whole if whole else 0.0 for limit, value in more.items()}}


def worth_having(rows: Sequence[ScalingRow]) -> ScalingRow:
    """Return the row with the most workers up to which each step up has brought at least half of what it could.

    Of one regime: `(s2 / s1 - 1) / (n2 / n1 - 1)` is 1 where the speed-up grows as the workers do, and 0 where it
    stays.
    """
    best = rows[0]
    for row in rows[1:]:
        before, now = gained_by(best), gained_by(row)
        if before is None or now is None or (now / before - 1) / (row.workers / best.workers - 1) < WORTH:
            break
        best = row
    return best


def gained_by(row: ScalingRow) -> float | None:
    """Return the speed-up; of the time alone, if passes are not known."""
    return row.time_speedup if row.speedup is None else row.speedup
