"""The data of every plot, as CSV: one table a plot, one row a point, all arms in one table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from quorate.report.schema import Curve, Estimate, Summary

Row = tuple[object, ...]


def tables(summary: Summary) -> dict[str, str]:
    """The text of every table, by name; what is not known is an empty cell. The first row names the columns."""
    return {name: _text(columns, rows(summary)) for name, (columns, rows) in _TABLES.items()}


def _text(columns: str, rows: Iterable[Row]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns.split())
    writer.writerows(rows)
    return written.getvalue()


def _curves(summary: Summary) -> Iterator[Row]:
    return (row for arm in summary.arms for curve in arm.curves for row in _points(arm.name, curve))


def _losses(summary: Summary) -> Iterator[Row]:
    return (row for arm in summary.arms for curve in arm.losses for row in _points(arm.name, curve))


def _points(arm: str, curve: Curve) -> Iterator[Row]:
    examples: Iterable[int | None] = curve.examples or (None for _ in curve.seconds)
    points = zip(curve.seconds, examples, curve.bytes, curve.quality, strict=True)
    return ((arm, curve.seed, *point) for point in points)


def _faults(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        for one in arm.faults:
            yield (arm.name, one.seed, one.rank, one.why, one.seconds, one.round, one.standstill, one.left)


def _joined(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        for one in arm.joined:
            yield (arm.name, one.seed, one.rank, one.replaced, one.seconds, one.round, one.waited, one.live)


def _distances(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        for curve in arm.replicas.distance if arm.replicas is not None else ():
            yield from _points(arm.name, curve)


def _replica_curves(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        for curve in arm.replicas.quality if arm.replicas is not None else ():
            yield from _points(arm.name, curve)


def _step_times(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        if arm.steps is not None:
            edges = arm.steps.edges
            yield from ((arm.name, *bin) for bin in zip(edges, edges[1:], arm.steps.counts, strict=False))


def _shares(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        if arm.steps is not None:
            yield from ((arm.name, activity, seconds) for activity, seconds in arm.steps.shares.items())


def _arrival(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        if arm.arrival is not None:
            seed = arm.arrival.seed
            for one in arm.arrival.ranks:
                figures = (one.lateness_mean, one.lateness_p95, one.last_share, one.step_mean)
                yield (arm.name, seed, one.rank, *figures)


def _heat(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        if arm.arrival is not None:
            for one, late in zip(arm.arrival.ranks, arm.arrival.heat, strict=True):
                for step, seconds in zip(arm.arrival.steps, late, strict=True):
                    yield (arm.name, arm.arrival.seed, one.rank, step, seconds)


def _timeline(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        yield from ((arm.name, lane.rank, *span) for lane in arm.timeline for span in lane.spans)


def _rounds(summary: Summary) -> Iterator[Row]:
    for arm in summary.arms:
        for name in _ESTIMATES if arm.rounds is not None else ():
            found: Estimate | None = getattr(arm.rounds, name)
            if found is not None:
                yield (arm.name, name, found.mean, found.low, found.high)


_ESTIMATES = ("count", "per_second", "fresh_share", "effective_batch", "waiting_share", "waiting_in_step")


def _staleness(summary: Summary) -> Iterator[Row]:
    return _counted((arm.name, arm.rounds.staleness) for arm in summary.arms if arm.rounds is not None)


def _contributors(summary: Summary) -> Iterator[Row]:
    return _counted((arm.name, arm.rounds.contributors) for arm in summary.arms if arm.rounds is not None)


def _rank_shares(summary: Summary) -> Iterator[Row]:
    return _counted((arm.name, arm.rounds.rank_shares) for arm in summary.arms if arm.rounds is not None)


def _counted(arms: Iterable[tuple[str, Sequence[float]]]) -> Iterator[Row]:
    return ((arm, number, count) for arm, counts in arms for number, count in enumerate(counts))


def _marks(summary: Summary) -> Iterator[Row]:
    """A row for every gradient; a round of which none is known has one row."""
    for arm in summary.arms:
        for mark in arm.marks:
            for given in mark.given or ((None, None, None),):
                yield (arm.name, mark.number, mark.time, *given)


_TABLES: dict[str, tuple[str, Callable[[Summary], Iterator[Row]]]] = {
    "curves": ("arm seed seconds examples bytes quality", _curves),
    "losses": ("arm seed seconds examples bytes loss", _losses),
    "step_times": ("arm from to count", _step_times),
    "shares": ("arm activity seconds", _shares),
    "arrival": ("arm seed rank lateness_mean lateness_p95 last_share step_mean", _arrival),
    "heat": ("arm seed rank step lateness", _heat),
    "rounds": ("arm figure mean low high", _rounds),
    "staleness": ("arm staleness gradients", _staleness),
    "contributors": ("arm workers rounds", _contributors),
    "rank_shares": ("arm rank share", _rank_shares),
    "faults": ("arm seed rank why seconds round standstill left", _faults),
    "joined": ("arm seed rank replaced seconds round waited live", _joined),
    "distances": ("arm seed seconds examples bytes distance", _distances),
    "replica_curves": ("arm seed seconds examples bytes quality", _replica_curves),
    "timeline": ("arm rank activity begin end", _timeline),
    "marks": ("arm round time rank arrive staleness", _marks),
}
"""By name: the columns, and what gives the rows."""
