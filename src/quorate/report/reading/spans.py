"""Spans of time, such as evaluations, and sums of their parts before a moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from quorate.report.reading.clocks import RunClock


class Spans:
    """Spans of time (begin, end) in any order; overlaps count once.

    A query costs time in proportion to the logarithm of their number.
    """

    def __init__(self, spans: Iterable[tuple[float, float]] = ()) -> None:
        self.spans: list[tuple[float, float]] = []
        for begin, end in sorted(span for span in spans if span[0] < span[1]):
            if self.spans and begin <= self.spans[-1][1]:
                begin, end = self.spans[-1][0], max(end, self.spans.pop()[1])
            self.spans.append((begin, end))
        self._begins = [begin for begin, _ in self.spans]
        self._totals = list(accumulate((end - begin for begin, end in self.spans), initial=0.0))

    def __bool__(self) -> bool:
        return bool(self.spans)

    def before(self, time: float) -> float:
        """Return the seconds of spans before `time`."""
        number = bisect_right(self._begins, time)
        if not number:
            return 0.0
        begin, end = self.spans[number - 1]
        return self._totals[number - 1] + min(end, time) - begin

    def between(self, begin: float, end: float) -> float:
        """Return the seconds of spans from `begin` to `end`."""
        return self.before(end) - self.before(begin)

    def moved(self, clock: RunClock) -> Spans:
        """Return the same spans on the clock of the run."""
        return Spans((clock.at(begin), clock.at(end)) for begin, end in self.spans)
