"""Several curves of one thing, one for each seed, as a middle line and a band."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

Points = Sequence[tuple[float, float]]
"""(x, y), sorted by x."""


def finite(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Return the finite points, sorted by x."""
    pairs = zip(xs, ys, strict=True)
    return sorted((float(x), float(y)) for x, y in pairs if math.isfinite(x) and math.isfinite(y))


def at(points: Points, x: float) -> float:
    """Return y at `x` by linear interpolation; beyond the ends, the y of the end."""
    place = bisect_right(points, x, key=lambda point: point[0])
    if place == 0:
        return points[0][1]
    if place == len(points):
        return points[-1][1]
    (x1, y1), (x2, y2) = points[place - 1], points[place]
    return y1 + (y2 - y1) * (x - x1) / (x2 - x1)


def thinned(points: Points, most: int) -> Points:
    """Return at most `most` of the points, evenly chosen, with the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]


def band(curves: Sequence[Points], most: int) -> list[tuple[float, float, float, float]]:
    """Return (x, mean, lowest, highest) where all curves are known: from the last beginning to the first end.

    The x are those of every curve's points, thinned to `most`. Empty if the curves have no x in common.
    """
    if not curves or not all(curves):
        return []
    low, high = max(points[0][0] for points in curves), min(points[-1][0] for points in curves)
    xs = sorted({min(max(x, low), high) for points in curves for x, _ in points}) if low <= high else []
    rows = []
    for x, _ in thinned([(x, 0.0) for x in xs], most):
        ys = [at(points, x) for points in curves]
        rows.append((x, math.fsum(ys) / len(ys), min(ys), max(ys)))
    return rows
