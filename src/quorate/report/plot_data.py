"""The data of every plot, as CSV: one table a plot, one row a point, all arms in one table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from quorate.report.schema import ArmSummary, Curve, Estimate, Summary
from quorate.report.schema_parts import Part

Row = tuple[object, ...]
_ESTIMATES = ("count", "per_second", "fresh_share", "effective_batch", "waiting_share", "waiting_in_step")


def tables(summary: Summary) -> dict[str, str]:
    """Return the text of every table, by name; unknown values are empty cells. The first row names the columns."""
    return {
        name: _text(columns, ((arm.name, *row) for arm in summary.arms for row in rows(arm)))
        for name, (columns, rows) in _TABLES.items()
    }


def _text(columns: str, rows: Iterable[Row]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns.split())
    writer.writerows(rows)
    return written.getvalue()


def _points(curves: Iterable[Curve]) -> Iterator[Row]:
    for curve in curves:
        examples: Iterable[int | None] = curve.examples or (None for _ in curve.seconds)
        for point in zip(curve.seconds, examples, curve.bytes, curve.quality, strict=True):
            yield (curve.seed, *point)


def _fields(parts: Iterable[Part], names: str) -> Iterator[Row]:
    return map(attrgetter(*names.split()), parts)


def _numbered(*columns: Iterable[object]) -> Iterator[Row]:
    for number, row in enumerate(zip(*columns, strict=True)):
        yield (number, *row)


def _step_times(arm: ArmSummary) -> Iterator[Row]:
    if arm.steps is not None:
        yield from zip(arm.steps.edges, arm.steps.edges[1:], arm.steps.counts, strict=False)


def _arrival(arm: ArmSummary) -> Iterator[Row]:
    if arm.arrival is not None:
        for row in _fields(arm.arrival.ranks, "rank lateness_mean lateness_p95 last_share step_mean"):
            yield (arm.arrival.seed, *row)


def _heat(arm: ArmSummary) -> Iterator[Row]:
    if arm.arrival is not None:
        for rank, late in zip(arm.arrival.ranks, arm.arrival.heat, strict=True):
            for step, seconds in zip(arm.arrival.steps, late, strict=True):
                yield (arm.arrival.seed, rank.rank, step, seconds)


def _rounds(arm: ArmSummary) -> Iterator[Row]:
    for name in _ESTIMATES if arm.rounds is not None else ():
        estimate: Estimate | None = getattr(arm.rounds, name)
        if estimate is not None:
            yield (name, estimate.mean, estimate.low, estimate.high)


def _marks(arm: ArmSummary) -> Iterator[Row]:
    """Return a row for every gradient; a round without known gradients has one row."""
    for mark in arm.marks:
        for gradient in mark.given or ((None, None, None),):
            yield (mark.number, mark.time, *gradient)


_TABLES: dict[str, tuple[str, Callable[[ArmSummary], Iterable[Row]]]] = {
    "curves": ("arm seed seconds examples bytes quality", lambda arm: _points(arm.curves)),
    "losses": ("arm seed seconds examples bytes loss", lambda arm: _points(arm.losses)),
    "step_times": ("arm from to count", _step_times),
    "shares": ("arm activity seconds", lambda arm: arm.steps.shares.items() if arm.steps else ()),
    "arrival": ("arm seed rank lateness_mean lateness_p95 last_share step_mean", _arrival),
    "heat": ("arm seed rank step lateness", _heat),
    "rounds": ("arm figure mean low high", _rounds),
    "staleness": ("arm staleness gradients", lambda arm: enumerate(arm.rounds.staleness) if arm.rounds else ()),
    "contributors": ("arm workers rounds", lambda arm: enumerate(arm.rounds.contributors) if arm.rounds else ()),
    "rank_shares": ("arm rank share", lambda arm: enumerate(arm.rounds.rank_shares) if arm.rounds else ()),
    "noise": (
        "arm seconds scale",
        lambda arm: _fields(arm.noise.shown if arm.noise else (), "seconds scale"),
    ),
    "served": (
        "arm staleness gradients weight",
        lambda arm: _numbered(arm.servers.staleness, arm.servers.weights) if arm.servers else (),
    ),
    "given": ("arm rank taken dropped", lambda arm: arm.servers.ranks if arm.servers else ()),
    "servers": (
        "arm rank busy_share bytes_in bytes_out",
        lambda arm: _fields(arm.servers.servers if arm.servers else (), "rank busy_share bytes_in bytes_out"),
    ),
    "faults": (
        "arm seed rank why seconds round standstill left",
        lambda arm: _fields(arm.faults, "seed rank why seconds round standstill left"),
    ),
    "joined": (
        "arm seed rank replaced seconds round waited live",
        lambda arm: _fields(arm.joined, "seed rank replaced seconds round waited live"),
    ),
    "memory": (
        "arm rank parameters gradients optimizer live_before peak_live resident_before peak_resident peak_gpu",
        lambda arm: _fields(
            arm.memory.ranks if arm.memory else (),
            "rank parameters gradients optimizer live_before peak_live resident_before peak_resident peak_gpu",
        ),
    ),
    "exclusions": (
        "arm rank why count share first last",
        lambda arm: _fields(arm.exclusions.ranks if arm.exclusions else (), "rank why count share first last"),
    ),
    "layers": (
        "arm name bytes_out",
        lambda arm: _fields(arm.layers.layers if arm.layers else (), "name bytes_out"),
    ),
    "stages": (
        "arm rank worker bubble bytes_out bytes_in",
        lambda arm: _fields(arm.stages.ranks if arm.stages else (), "rank worker bubble bytes_out bytes_in"),
    ),
    "distances": (
        "arm seed seconds examples bytes distance",
        lambda arm: _points(arm.replicas.distance if arm.replicas else ()),
    ),
    "replica_curves": (
        "arm seed seconds examples bytes quality",
        lambda arm: _points(arm.replicas.quality if arm.replicas else ()),
    ),
    "timeline": (
        "arm rank activity begin end",
        lambda arm: ((lane.rank, *span) for lane in arm.timeline for span in lane.spans),
    ),
    "marks": ("arm round time rank arrive staleness", _marks),
}
"""By name: the columns, and the function that returns the rows of an arm, without its name."""
