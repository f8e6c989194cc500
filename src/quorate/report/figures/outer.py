"""Outer steps of one run: how alike outer gradients were, how far steps went along their own, and how far across."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from quorate.records.rows import Outer
from quorate.report.schema_parts import OuterPoint, OuterSummary

SHOWN = 400
"""The most outer steps that are drawn: evenly over the run."""


def outer_points(rows: Sequence[Outer], seconds_at: Callable[[float], float]) -> tuple[OuterPoint, ...]:
    """Return the points of rows that have all three figures.

    `seconds_at` converts a time to seconds of the run's training.
    """
    return tuple(
        OuterPoint(
            seconds=seconds_at(row.time), fragment=row.fragment, rho=row.rho, gain=row.gain, transverse=row.transverse
        )
        for row in rows
        if row.rho is not None and row.gain is not None and row.transverse is not None
    )


def outer_summary(runs: Sequence[Sequence[OuterPoint]]) -> OuterSummary | None:
    """Return the summary of all runs of an arm together; the steps that are drawn are those of the first."""
    points = [point for run in runs for point in run]
    if not points:
        return None

    def median(values: Iterable[float]) -> float:
        return statistics.median(values)

    first = next(run for run in runs if run)
    stride = -(-len(first) // SHOWN)
    return OuterSummary(
        count=len(points),
        rho=median(point.rho for point in points),
        gain=median(point.gain for point in points),
        transverse=median(point.transverse for point in points),
        shown=tuple(first[::stride]),
    )
