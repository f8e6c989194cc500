"""The speed-up of more workers, taken apart: time per pass times passes to the target. Pure.

speed-up(n) = T(n0) / T(n) with T = (seconds per pass) x (passes to the target), so it is the product of two ratios. The
first suffers where workers wait, bytes move, or each computes slower; the second where the batch grows and each example
teaches less. `losses` say where the time of n workers goes that n / n0 times the speed would have saved.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quorate.core.gradient_noise import example_factor
from quorate.report.scaling.schema import Limit, Regime, ScalingRow

NAMED = 0.1
"""The share of the time from which on a loss is said to be what limits."""
WORTH = 0.5
"""What more workers have to bring to be worth having, as a share of what they would bring at best."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is known of one number of workers."""

    regime: Regime
    workers: int
    is_simulated: bool = False
    rates: Sequence[float] = ()
    """Examples per second, by seed."""
    examples: Sequence[float] = ()
    """To the target, by seed; of the runs that reached it."""
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
    """Regime by regime. `price` is that of a worker and hour."""
    found: list[ScalingRow] = []
    for regime in dict.fromkeys(one.regime for one in measured):
        own = sorted((one for one in measured if one.regime == regime), key=lambda one: one.workers)
        known = [_known(one, own, pass_examples) for one in own]
        found += [_row(one, known[0], pass_examples, price) for one in known]
    return tuple(found)


def _known(one: Measured, own: Sequence[Measured], pass_examples: float) -> _Known:
    seconds = pass_examples / statistics.fmean(one.rates) if one.rates else None
    examples = statistics.fmean(one.examples) if one.examples else _foreseen(one, own)
    return _Known(one, seconds, None if examples is None else examples / pass_examples)


def _foreseen(one: Measured, own: Sequence[Measured]) -> float | None:
    """Examples to the target, by those of the most workers that were measured and the noise of their gradients."""
    if not one.is_simulated:
        return None
    most = max((x for x in own if not x.is_simulated), key=lambda x: x.workers, default=None)
    if most is None or not most.examples or most.noise is None:
        return None
    if most.noise <= 0:
        return statistics.fmean(most.examples) * one.workers / most.workers
    ratio = example_factor(most.noise, one.workers) / example_factor(most.noise, most.workers)
    return statistics.fmean(most.examples) * ratio


def _row(one: _Known, first: _Known, pass_examples: float, price: float | None) -> ScalingRow:
    of, times = one.of, one.of.workers / first.of.workers
    time = _ratio(first.pass_seconds, one.pass_seconds)
    passes = _ratio(first.passes, one.passes)
    both = None if time is None or passes is None else time * passes
    losses = _losses(one, first, time, times)
    limit = max(losses, key=lambda name: losses[name], default=None)
    to_target = None if one.pass_seconds is None or one.passes is None else one.pass_seconds * one.passes
    spent = one.pass_seconds if one.passes is None else to_target
    worker_seconds = None if spent is None else of.workers * spent
    gained = time if both is None else both
    return ScalingRow(
        regime=of.regime,
        workers=of.workers,
        is_simulated=of.is_simulated,
        seeds=len(of.rates),
        batch=None if of.batch is None else of.batch * of.workers,
        examples_per_second=None if one.pass_seconds is None else pass_examples / one.pass_seconds,
        pass_seconds=one.pass_seconds,
        passes=one.passes,
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


def _ratio(first: float | None, one: float | None) -> float | None:
    return first / one if first is not None and one else None


def _losses(one: _Known, first: _Known, time: float | None, times: float) -> dict[Limit, float]:
    """Of the time per pass, what is beyond that of the fewest workers over how many times as many there are, dealt out
    by how much longer each part of a step takes for an example; of the passes, what is beyond those of the fewest."""
    found: dict[Limit, float] = {}
    if one.of.workers == first.of.workers:
        return found
    if one.passes and first.passes:
        found["batch"] = max(0.0, 1 - first.passes / one.passes)
    if time is None or not one.of.step or not first.of.step or not one.of.batch or not first.of.batch:
        return found
    lost = max(0.0, 1 - time / times)
    names: dict[str, Limit] = {"compute": "computing", "waiting": "waiting", "communication": "wire"}
    more = {
        limit: max(0.0, one.of.step.get(name, 0.0) / one.of.batch - first.of.step.get(name, 0.0) / first.of.batch)
        for name, limit in names.items()
    }
    whole = sum(more.values())
    return {**found, **{limit: lost * value / whole if whole else 0.0 for limit, value in more.items()}}


def worth_having(rows: Sequence[ScalingRow]) -> ScalingRow:
    """The most workers up to which each step up has brought at least half of what it could, of one regime.

    `(s2 / s1 - 1) / (n2 / n1 - 1)` is 1 where the speed-up grows as the workers do, and 0 where it stays.
    """
    best = rows[0]
    for row in rows[1:]:
        before, now = gained_by(best), gained_by(row)
        if before is None or now is None or (now / before - 1) / (row.workers / best.workers - 1) < WORTH:
            break
        best = row
    return best


def gained_by(row: ScalingRow) -> float | None:
    """The speed-up; of the time alone, where passes are not known."""
    return row.time_speedup if row.speedup is None else row.speedup
