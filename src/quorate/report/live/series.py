"""A curve that grows without end, in a bounded number of points."""

from __future__ import annotations


class Series:
    """Points (x, y) in order of x: the means of as many neighbours as it takes to stay below `most` points."""

    def __init__(self, most: int = 600) -> None:
        self._most = most
        self._together = 1
        self._points: list[tuple[float, float]] = []
        self._open: list[tuple[float, float]] = []

    def add(self, x: float, y: float) -> None:
        """Add the next point."""
        self._open.append((x, y))
        if len(self._open) == self._together:
            self._points.append(_mean(self._open))
            self._open = []
        if len(self._points) >= self._most:
            self._points = [_mean(self._points[at : at + 2]) for at in range(0, len(self._points), 2)]
            self._together *= 2

    @property
    def points(self) -> list[tuple[float, float]]:
        """All points; the last one may be the mean of fewer."""
        return [*self._points, *([_mean(self._open)] if self._open else [])]

    def __bool__(self) -> bool:
        return bool(self._points or self._open)


def _mean(points: list[tuple[float, float]]) -> tuple[float, float]:
    count = len(points)
    return sum(x for x, _ in points) / count, sum(y for _, y in points) / count
