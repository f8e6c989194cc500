"""The verdict on several numbers of workers: one sentence, and cautions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quorate.report.parts import TableColumns, cells_of
from quorate.report.scaling.figures import Limit, Regime, ScalingRow, ScalingSummary, gained_by, worth_having
from quorate.report.wording import (
    counted,
    listed,
    number_in_words,
    numbers_alike,
    seconds_alike,
    share_in_words,
    shares_alike,
)

LIMITS: dict[Limit, str] = {
    "computing": "of the time goes into computing, which takes longer for each example",
    "waiting": "of the time goes into waiting for others",
    "wire": "of the time goes into bytes that move",
    "batch": "of the passes are those that the larger batch takes more",
}
FIGURES: TableColumns[ScalingRow] = (
    ("time per pass", lambda row: row.pass_seconds, seconds_alike),
    ("passes", lambda row: row.passes, numbers_alike),
    ("speed-up", lambda row: row.speedup, numbers_alike),
    ("= time", lambda row: row.time_speedup, numbers_alike),
    ("x passes", lambda row: row.pass_speedup, numbers_alike),
    ("efficiency", lambda row: row.efficiency, shares_alike),
    ("worker-seconds", lambda row: row.worker_seconds, numbers_alike),
)
REGIMES: dict[Regime, str] = {"weak": "with the same batch for each worker", "strong": "with the same batch for all"}


def verdict_of(rows: Sequence[ScalingRow], target: str | None, price: float | None) -> str:
    """Return one sentence on the first regime."""
    of_regime = [row for row in rows if row.regime == rows[0].regime]
    if gained_by(of_regime[0]) is None:
        return f"{counted(of_regime[0].workers, 'worker')} left nothing to measure, so that nothing can be said."
    best = worth_having(of_regime)
    numbers = listed([str(row.workers) for row in of_regime])
    if best.workers == of_regime[0].workers:
        said = f"of {numbers} workers, more than {best.workers} are not worth having"
    else:
        said = f"of {numbers} workers, {best.workers} are worth having: {_gain(best, of_regime[0], target)}"
    following = next((row for row in of_regime if row.workers > best.workers), None)
    if following is not None:
        said += f"; {_next(following)}"
    return f"{said[0].upper()}{said[1:]}{_cost(of_regime, best, price)}."


def _gain(best: ScalingRow, first: ScalingRow, target: str | None) -> str:
    gained = gained_by(best)
    assert gained is not None and best.time_speedup is not None
    times = f"{number_in_words(gained)} times as fast as {first.workers}"
    if best.speedup is None or best.pass_speedup is None:
        return f"{times} in the time per pass{_mark(best)}"
    to = f" to {target}" if target else ""
    parts = (
        f"{number_in_words(best.time_speedup)} by the time per pass, {number_in_words(best.pass_speedup)} by the passes"
    )
    return f"{times}{to} ({parts}){_mark(best)}"


def _next(row: ScalingRow) -> str:
    gained = gained_by(row)
    if gained is None:
        return f"{counted(row.workers, 'worker')} could not be measured"
    said = f"{row.workers} come to {number_in_words(gained)} times{_mark(row)}"
    if row.limit is None:
        return said
    return f"{said}, where {share_in_words(row.losses[row.limit])} {LIMITS[row.limit]}"


def _mark(row: ScalingRow) -> str:
    return " (simulated)" if row.is_simulated else ""


def _cost(rows: Sequence[ScalingRow], best: ScalingRow, price: float | None) -> str:
    cheapest = min((row for row in rows if row.worker_seconds), key=lambda row: row.worker_seconds or 0.0, default=None)
    if cheapest is None or best.worker_seconds is None or cheapest.worker_seconds is None:
        return ""
    money = f", which cost {number_in_words(best.cost)}" if price is not None and best.cost is not None else ""
    spent = f"{best.workers} {'takes' if best.workers == 1 else 'take'} {number_in_words(best.worker_seconds)}"
    if cheapest.workers == best.workers:
        return f"; {spent} worker-seconds, the least of all{money}"
    more = best.worker_seconds / cheapest.worker_seconds - 1
    return f"; {spent} worker-seconds, {share_in_words(more)} more than {cheapest.workers}{money}"


def warnings_of(rows: Sequence[ScalingRow], cores: int | None) -> Iterator[str]:
    """Yield the cautions."""
    simulated = [str(row.workers) for row in rows if row.is_simulated]
    if simulated:
        yield (
            f"{listed(simulated)} workers are simulated: times as those of the most that were measured, passes by the "
            "noise of their gradients"
        )
        if any(row.is_simulated and row.passes is None for row in rows):
            yield "no noise scale is known, so passes of simulated workers are not; speed-ups are of the time"
    crowded = [str(row.workers) for row in rows if not row.is_simulated and cores and row.workers > cores]
    if crowded:
        yield f"{listed(crowded)} workers share {counted(cores or 0, 'core')}: each computes slower than it would alone"
    if min((row.seeds for row in rows if not row.is_simulated), default=2) < 2:
        yield "one seed only: differences of some percent are chance"
    for row in rows:
        if not row.is_simulated and row.pass_seconds is None:
            yield f"{counted(row.workers, 'worker')}: no run ended well, or none was long enough to measure"


def lines_of(summary: ScalingSummary) -> Iterator[str]:
    """Yield the verdict, a table for each regime, and cautions, as plain lines."""
    yield summary.verdict
    for regime in dict.fromkeys(row.regime for row in summary.rows):
        yield ""
        yield f"{regime} scaling, {REGIMES[regime]}"
        rows = [(row,) for row in summary.rows if row.regime == regime]
        columns = [("workers", lambda row: f"{row.workers}{_mark(row)}", None), *FIGURES]
        cells = zip(*cells_of(rows, columns, "–"), strict=True)
        lines = [[head for head, _, _ in columns], *cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            yield "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
    yield ""
    yield from (f"caution: {warning}" for warning in summary.warnings)
