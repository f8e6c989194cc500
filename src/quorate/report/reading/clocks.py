"""The workers' clocks as one: what to add to the times of each rank, and how far that may be wrong.

Between hosts workers have measured how far their clocks are apart (rows `clock`). Ranks on one machine have one clock,
so what any of them measured counts for all of them. Where nothing was measured, hosts are held side by side by their
time of day, which is as right as they agree on it; nobody knows how right that is.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from quorate.records.rows import ClockOffset
from quorate.report.reading.sound import has_numbers

DRIFT = 200e-6
"""By which two clocks drift apart at most, in seconds per second: 100 ppm each."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is to be added to a clock when it shows `time`, and by how much that is wrong at most."""

    time: float
    shift: float
    uncertainty: float


class RunClock:
    """What one machine's clock showed, on the clock of the run. Between two of the `known` it goes evenly."""

    def __init__(self, known: Sequence[Known]) -> None:
        self._known = known
        self._times = [one.time for one in known]

    @property
    def is_reference(self) -> bool:
        """Whether nothing is ever to be added."""
        return all(one.shift == 0.0 for one in self._known)

    def at(self, time: float) -> float:
        """The same moment on the clock of the run."""
        return time + self._between(time).shift

    def uncertainty(self, time: float) -> float:
        """Seconds by which `at` is wrong at most; infinite where nothing was measured."""
        return self._between(time).uncertainty

    def _between(self, time: float) -> Known:
        number = bisect_right(self._times, time)
        if not self._known:
            return Known(time, 0.0, 0.0)
        if number in (0, len(self._known)):
            nearest = self._known[max(0, number - 1)]
            away = abs(time - nearest.time) * DRIFT if nearest.uncertainty else 0.0
            return Known(time, nearest.shift, nearest.uncertainty + away)
        early, late = self._known[number - 1], self._known[number]
        share = (time - early.time) / (late.time - early.time)
        shift = early.shift + share * (late.shift - early.shift)
        return Known(time, shift, max(early.uncertainty, late.uncertainty))


SAME = RunClock(())


def run_clocks(
    starts: Mapping[int, Mapping[str, Any]], offsets: Mapping[int, Sequence[ClockOffset]]
) -> dict[int, RunClock]:
    """By rank; `starts` are the `start` rows of all, and `offsets` the `clock` rows of those that have some."""
    known = {rank: [row for row in own if row.reference <= rank] for rank, own in offsets.items()}
    rows = [row for own in known.values() for row in own]
    machines = {rank: own[0].machine for rank, own in known.items() if own}
    measured = _measured(rows, machines) if rows else {}
    clocks = {rank: measured[machines[rank]] for rank in starts if machines.get(rank) in measured}
    return {**_by_the_time_of_day(starts, clocks), **clocks}


def _measured(rows: Sequence[ClockOffset], machines: Mapping[int, str]) -> dict[str, RunClock]:
    """By machine. The lowest rank that anyone measured against has the clock of the run.

    A machine that measured against another one, after the first was lost, is as uncertain as both together.
    """
    root = machines.get(min(row.reference for row in rows))
    direct: dict[str, list[Known]] = {}
    for row in rows:
        if machines.get(row.reference) == root and row.machine != root:
            direct.setdefault(row.machine, []).append(Known(row.time, row.offset, row.uncertainty))
    found = {machine: RunClock(_best(known)) for machine, known in direct.items()}
    for row in rows:
        by = found.get(machines.get(row.reference, ""))
        if by is not None and row.machine not in (root, machines.get(row.reference)):
            there = row.time + row.offset
            shift, uncertainty = by.at(there) - row.time, row.uncertainty + by.uncertainty(there)
            direct.setdefault(row.machine, []).append(Known(row.time, shift, uncertainty))
    clocks = {machine: RunClock(_best(known)) for machine, known in direct.items()}
    return clocks if root is None else {**clocks, root: SAME}


def _best(known: Iterable[Known]) -> list[Known]:
    """Without those of which others, and the drift, say as much: what is left is in order, and uneven in nothing."""
    found = sorted(known, key=attrgetter("time"))
    for _ in range(2):
        kept, bound, before = list[Known](), math.inf, 0.0
        for one in found:
            bound += abs(one.time - before) * DRIFT
            if one.uncertainty <= bound and not (kept and kept[-1].time == one.time):
                kept.append(one)
            bound, before = min(bound, one.uncertainty), one.time
        found = kept[::-1]
    return found


def _by_the_time_of_day(
    starts: Mapping[int, Mapping[str, Any]], measured: Mapping[int, RunClock]
) -> dict[int, RunClock]:
    """Of those that have measured nothing: as their host's others, else by what their clocks showed when.

    The clock of the run is that of a rank with which nothing is to be added, else that of the first host.
    """
    hosts: dict[Any, float] = {}
    known: dict[Any, RunClock] = {}
    for rank, start in starts.items():
        if rank in measured:
            known.setdefault(start.get("host"), measured[rank])
        if has_numbers(start, "wall", "now"):
            hosts.setdefault(start.get("host"), start["wall"] - start["now"])
    references = [starts[rank].get("host") for rank, clock in measured.items() if clock.is_reference]
    first = next((host for host in references if host in hosts), next(iter(hosts), None))
    found = {}
    for rank, start in starts.items():
        host = start.get("host")
        shift = hosts.get(host, hosts.get(first, 0.0)) - hosts.get(first, 0.0)
        by_day = RunClock([Known(0.0, shift, math.inf)]) if host != first and host in hosts else SAME
        found[rank] = known.get(host, by_day)
    return found
