"""Outer steps of one run: how alike outer gradients were, how far steps went along their own, and how far across."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from quorate.records.rows import Outer
from quorate.report.schema_parts import OuterPoint, OuterSummary

SHOWN = 400
"""Outer steps that are drawn, at most: evenly over the run."""


def outer_points(rows: Sequence[Outer], seconds_at: Callable[[float], float]) -> tuple[OuterPoint, ...]:
    """Of those that say all three figures; `seconds_at` makes of a time the run's training time then."""
    return tuple(
        OuterPoint(
            seconds=seconds_at(one.time), fragment=one.fragment, rho=one.rho, gain=one.gain, transverse=one.transverse
        )
        for one in rows
        if one.rho is not None and one.gain is not None and one.transverse is not None
    )


def outer_summary(runs: Sequence[Sequence[OuterPoint]]) -> OuterSummary | None:
    """Of all runs of an arm together; the steps that are drawn are those of the first."""
    points = [point for run in runs for point in run]
    if not points:
        return None

    def median(values: Iterable[float]) -> float:
        return statistics.median(values)

    first = next(run for run in runs if run)
    every = -(-len(first) // SHOWN)
    return OuterSummary(
        count=len(points),
        rho=median(point.rho for point in points),
        gain=median(point.gain for point in points),
        transverse=median(point.transverse for point in points),
        shown=tuple(first[::every]),
    )
