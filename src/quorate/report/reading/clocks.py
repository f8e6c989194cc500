"""The workers' clocks as one: the shift of the times of each rank, and its uncertainty; and spans of time.

Workers on several hosts have measured how far their clocks are apart (rows `clock`). Ranks on one machine have one
clock, so a measurement of any of them counts for all of them. Hosts without measurements are compared by their time
of day, whose uncertainty is not known.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any

from quorate.records.rows import ClockOffset
from quorate.report.reading.sound import has_numbers

DRIFT = 200e-6
"""The most by which two clocks drift apart, in seconds per second: 100 ppm each."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The shift of a clock when it shows `time`, and its greatest error."""

    time: float
    shift: float
    uncertainty: float


class RunClock:
    """A map from one machine's clock to the clock of the run. Between two `shifts` it is linear."""

    def __init__(self, shifts: Sequence[Shift]) -> None:
        self._shifts = shifts
        self._times = [shift.time for shift in shifts]

    @property
    def is_reference(self) -> bool:
        """Whether the shift is always 0."""
        return all(shift.shift == 0.0 for shift in self._shifts)

    def at(self, time: float) -> float:
        """Return `time` on the clock of the run."""
        return time + self._between(time).shift

    def uncertainty(self, time: float) -> float:
        """Return the greatest error of `at` in seconds; infinite without measurements."""
        return self._between(time).uncertainty

    def _between(self, time: float) -> Shift:
        number = bisect_right(self._times, time)
        if not self._shifts:
            return Shift(time, 0.0, 0.0)
        if number in (0, len(self._shifts)):
            nearest = self._shifts[max(0, number - 1)]
            away = abs(time - nearest.time) * DRIFT if nearest.uncertainty else 0.0
            return Shift(time, nearest.shift, nearest.uncertainty + away)
        early, late = self._shifts[number - 1], self._shifts[number]
        share = (time - early.time) / (late.time - early.time)
        shift = early.shift + share * (late.shift - early.shift)
        return Shift(time, shift, max(early.uncertainty, late.uncertainty))


SAME = RunClock(())


def run_clocks(
    starts: Mapping[int, Mapping[str, Any]], offsets: Mapping[int, Sequence[ClockOffset]]
) -> dict[int, RunClock]:
    """Return clocks by rank; `starts` are the `start` rows of all, and `offsets` the `clock` rows of some."""
    to_lower = {rank: [row for row in rank_rows if row.reference <= rank] for rank, rank_rows in offsets.items()}
    rows = [row for rank_rows in to_lower.values() for row in rank_rows]
    machines = {rank: rank_rows[0].machine for rank, rank_rows in to_lower.items() if rank_rows}
    measured = _measured(rows, machines) if rows else {}
    clocks = {rank: measured[machines[rank]] for rank in starts if machines.get(rank) in measured}
    return {**_by_the_time_of_day(starts, clocks), **clocks}


def _measured(rows: Sequence[ClockOffset], machines: Mapping[int, str]) -> dict[str, RunClock]:
    """Return clocks by machine. The lowest rank that anyone measured against has the clock of the run.

    A machine that measured against another one, after the first was lost, has the uncertainty of both together.
    """
    root = machines.get(min(row.reference for row in rows))
    direct: dict[str, list[Shift]] = {}
    for row in rows:
        if machines.get(row.reference) == root and row.machine != root:
            direct.setdefault(row.machine, []).append(Shift(row.time, row.offset, row.uncertainty))
    by_machine = {machine: RunClock(_best(shifts)) for machine, shifts in direct.items()}
    for row in rows:
        by = by_machine.get(machines.get(row.reference, ""))
        if by is not None and row.machine not in (root, machines.get(row.reference)):
            middle = row.time + row.offset
            shift, uncertainty = by.at(middle) - row.time, row.uncertainty + by.uncertainty(middle)
            direct.setdefault(row.machine, []).append(Shift(row.time, shift, uncertainty))
    clocks = {machine: RunClock(_best(shifts)) for machine, shifts in direct.items()}
    return clocks if root is None else {**clocks, root: SAME}


def _best(measured: Iterable[Shift]) -> list[Shift]:
    """Drop shifts that others, and the drift, bound as closely; the remaining ones are in order, at different times."""
    shifts = sorted(measured, key=attrgetter("time"))
    for _ in range(2):
        kept, bound, before = list[Shift](), math.inf, 0.0
        for shift in shifts:
            bound += abs(shift.time - before) * DRIFT
            if shift.uncertainty <= bound and not (kept and kept[-1].time == shift.time):
                kept.append(shift)
            bound, before = min(bound, shift.uncertainty), shift.time
        shifts = kept[::-1]
    return shifts


def _by_the_time_of_day(
    starts: Mapping[int, Mapping[str, Any]], measured: Mapping[int, RunClock]
) -> dict[int, RunClock]:
    """Return clocks of ranks without measurements: those of others on their host, else by the time of day.

    The clock of the run is that of a rank without a shift, else that of the first host.
    """
    hosts: dict[Any, float] = {}
    by_host: dict[Any, RunClock] = {}
    for rank, start in starts.items():
        if rank in measured:
            by_host.setdefault(start.get("host"), measured[rank])
        if has_numbers(start, "wall", "now"):
            hosts.setdefault(start.get("host"), start["wall"] - start["now"])
    references = [starts[rank].get("host") for rank, clock in measured.items() if clock.is_reference]
    first = next((host for host in references if host in hosts), next(iter(hosts), None))
    clocks = {}
    for rank, start in starts.items():
        host = start.get("host")
        shift = hosts.get(host, hosts.get(first, 0.0)) - hosts.get(first, 0.0)
        by_day = RunClock([Shift(0.0, shift, math.inf)]) if host != first and host in hosts else SAME
        clocks[rank] = by_host.get(host, by_day)
    return clocks


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
