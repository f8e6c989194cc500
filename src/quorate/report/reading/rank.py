"""The records of one rank as an object: its rows in order, on one clock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from quorate.records.choice_rows import Shrunk, Tuned
from quorate.records.host_rows import Load, Memory
from quorate.records.records import records_of, rows, rows_in
from quorate.records.rows import (
    ClockOffset,
    Distance,
    Distribute,
    End,
    Evaluate,
    Excluded,
    Gone,
    Joined,
    Layers,
    Log,
    Noise,
    Outer,
    Served,
    Start,
    Step,
)
from quorate.report.reading.clocks import SAME, RunClock, Spans
from quorate.report.reading.rounds import RoundRecord, number_updates, round_of, take_back
from quorate.report.reading.sound import has_numbers, is_count, is_number, row_of, sound_parts

R = TypeVar("R", Gone, Joined, Log, Distance, Outer, Noise, Excluded, Tuned)
HEAD_BYTES = 8 << 10


_LISTED: dict[str, tuple[type, str]] = {
    "log": (Log, "logs"),
    "distance": (Distance, "distances"),
    "outer": (Outer, "outers"),
    "noise": (Noise, "noises"),
    "excluded": (Excluded, "exclusions"),
    "tuned": (Tuned, "tunings"),
    "gone": (Gone, "deaths"),
    "joined": (Joined, "joinings"),
    "memory": (Memory, "memory"),
    "load": (Load, "loads"),
    "shrunk": (Shrunk, "sizes"),
}
"""Rows that are kept as they are: by kind, their class, and the list of `RankRecords` that they are in."""


@dataclass(slots=True)
class RankRecords:
    """The records of one rank. Times are seconds on the clock of the run, the same for all ranks."""

    rank: int
    start: dict[str, Any] = field(default_factory=dict)
    distributed: dict[str, Any] = field(default_factory=dict)
    """The `distribute` row of the first optimizer."""
    steps: list[Step] = field(default_factory=list)
    """Steps of the first optimizer, in order; evaluation is not within any of them."""
    others: list[Step] = field(default_factory=list)
    """Steps of further optimizers."""
    rounds: list[RoundRecord] = field(default_factory=list)
    """Rounds of the first optimizer; only the lowest live rank records them, under strategies with a quorum."""
    logs: list[Log] = field(default_factory=list)
    distances: list[Distance] = field(default_factory=list)
    outers: list[Outer] = field(default_factory=list)
    noises: list[Noise] = field(default_factory=list)
    exclusions: list[Excluded] = field(default_factory=list)
    tunings: list[Tuned] = field(default_factory=list)
    layers: Layers | None = None
    """The row of the first optimizer that has recorded layers."""
    served: list[Served] = field(default_factory=list)
    """The work of its server for the first optimizer."""
    offsets: list[ClockOffset] = field(default_factory=list)
    """Measurements of its clock."""
    clock: RunClock = SAME
    """The map from its own clock to that of the run."""
    clock_uncertainty: float = 0.0
    """The greatest error of that map at its steps, in seconds."""
    deaths: list[Gone] = field(default_factory=list)
    """Deaths of other ranks, as this one recorded them."""
    joinings: list[Joined] = field(default_factory=list)
    """Joins of other ranks, as this one recorded them."""
    memory: list[Memory] = field(default_factory=list)
    sizes: list[Shrunk] = field(default_factory=list)
    """The sizes of a model that is made smaller."""
    loads: list[Load] = field(default_factory=list)
    """The load of its host, at the end of each session."""
    foreseen: dict[str, dict[str, int]] = field(default_factory=dict)
    """Forecasts of its bytes, by optimizer."""
    evaluations: Spans = field(default_factory=Spans)
    after_evaluation: set[int] = field(default_factory=set)
    """The numbers of the steps next after an evaluation: they wait for others who still evaluate."""
    end: dict[str, Any] | None = None
    """The last row; None if the worker died before it."""

    @property
    def is_newcomer(self) -> bool:
        """Whether it joined when the run was under way: its step 1 is not that of the others."""
        return is_newcomer(self.start)

    def training_seconds(self, time: float, origin: float) -> float:
        """Return the seconds from `origin` to `time`, without this rank's evaluations."""
        return max(0.0, time - origin - (self.evaluations.before(time) - self.evaluations.before(origin)))

    def move(self, clock: RunClock) -> None:
        """Move all times to the clock of the run; `clock` maps its own."""
        self.clock = clock
        self.clock_uncertainty = max((clock.uncertainty(step.end) for step in self.steps), default=0.0)
        if clock.is_reference:
            return
        for step in self.steps:
            step.begin, step.arrive, step.end = map(clock.at, (step.begin, step.arrive, step.end))
        for merged in self.rounds:
            merged.time = clock.at(merged.time)
        self.logs, self.evaluations = moved(self.logs, clock), self.evaluations.moved(clock)
        self.distances, self.outers = moved(self.distances, clock), moved(self.outers, clock)
        self.noises, self.exclusions = moved(self.noises, clock), moved(self.exclusions, clock)
        self.deaths, self.joinings = moved(self.deaths, clock), moved(self.joinings, clock)
        self.tunings = moved(self.tunings, clock)
        for row, name in ((self.start, "now"), (self.end or {}, "time")):
            if has_numbers(row, name):
                row[name] = clock.at(row[name])


def read_rank(folder: Path, rank: int, most_bytes: int | None) -> RankRecords:
    """Read a rank's file in `folder`; if longer than `most_bytes`, only the first rows, and the last `most_bytes`."""
    records = RankRecords(rank)
    spans: list[tuple[float, float]] = []
    fresh: list[RoundRecord] = []
    sessions = Sessions()
    path = records_of(folder, rank)
    is_long = most_bytes is not None and path.stat().st_size > most_bytes + HEAD_BYTES
    for row in first_and_last_rows(path, most_bytes) if is_long and most_bytes is not None else rows(path):
        row, kind = sessions.row(row), row["kind"]
        if kind == "step" and (step := row_of(Step, row)) is not None:
            pause = sessions.step(step, records)
            spans += [pause] if pause else []
            records.steps.append(step)
            number_updates([record for record in fresh if record.optimizer in (None, step.optimizer)], step)
            fresh = [record for record in fresh if record.optimizer not in (None, step.optimizer)]
        elif kind == "round" and (merged := round_of(row)) is not None:
            for rounds in (records.rounds, fresh):
                take_back(rounds, merged)
                rounds.append(merged)
        elif kind in _LISTED:
            row_class, name = _LISTED[kind]
            if (listed := row_of(row_class, row)) is not None:
                getattr(records, name).append(listed)
        elif kind == "layers" and (layers := row_of(Layers, row)) is not None:
            records.layers = records.layers or layers
        elif kind == "served" and (served := served_of(row)) is not None:
            records.served.append(served)
        elif kind == "clock" and not sessions.is_moved and (offset := row_of(ClockOffset, row)) is not None:
            records.offsets.append(offset)
        elif kind == "evaluate" and (evaluate := row_of(Evaluate, row)) is not None:
            spans.append((evaluate.begin, evaluate.end))
        elif kind == "start" and not records.start:
            records.start = sound_parts(row, Start)
        elif kind == "distribute":
            distributed = sound_parts(row, Distribute)
            records.distributed = records.distributed or distributed
            records.foreseen |= (
                {str(distributed.get("optimizer")): distributed["foreseen"]} if distributed.get("foreseen") else {}
            )
        elif kind == "end":
            records.end = sound_parts(row, End)
    records.noises = [noise for noise in records.noises if noise.gradients > 1]
    records.evaluations = Spans(spans)
    return records


def first_and_last_rows(path: Path, most_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the rows in the first `HEAD_BYTES` and the last `most_bytes`; the two that are cut are skipped."""
    with open(path, "rb") as file:
        lines = file.read(HEAD_BYTES).splitlines()
        file.seek(-most_bytes, os.SEEK_END)
        lines += file.read().splitlines()
    return rows_in(lines)


def served_of(row: Mapping[str, Any]) -> Served | None:
    """Return a `served` row as an object; None if a value is missing or damaged."""
    served = row_of(Served, row)
    if served is None or served.seconds < 0.0 or served.busy < 0.0:
        return None
    counts = ((served.taken or (), 2), (served.dropped or (), 2), (served.given or (), 3))
    is_sound = all(len(values) == length and all(map(is_count, values)) for rows, length in counts for values in rows)
    counted = served.counted or ()
    is_sound &= len(counted) == len(served.taken or ()) and all(
        is_number(weight) and weight >= 0.0 for weight in counted
    )
    return served if is_sound else None


def moved(events: Sequence[R], clock: RunClock) -> list[R]:
    """Return the same events on the clock of the run."""
    return [replace(event, time=clock.at(event.time)) for event in events]


_TIMES = ("begin", "arrive", "end", "time")
_SAME_CLOCK_SECONDS = 1.0


class Sessions:
    """The sessions of one rank's file, each of which begins with a row `start`."""

    def __init__(self) -> None:
        self._begun: Mapping[str, Any] | None = None
        self._shift = 0.0
        self._is_resuming = False

    @property
    def is_moved(self) -> bool:
        """Whether this session's clock is another than the first session's, to which nothing was measured."""
        return self._shift != 0.0

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row with its times on the first session's clock."""
        if row["kind"] == "start":
            self._start(row)
        if not self._shift:
            return row
        return {key: value + self._shift if key in _TIMES and is_number(value) else value for key, value in row.items()}

    def _start(self, row: Mapping[str, Any]) -> None:
        if self._begun is None:
            self._begun = row
            return
        self._is_resuming = not is_newcomer(row)  # that one is another worker, with a step 1 of its own
        if all(is_number(session.get(name)) for session in (row, self._begun) for name in ("wall", "now")):
            shift = (row["wall"] - row["now"]) - (self._begun["wall"] - self._begun["now"])
            self._shift = shift if abs(shift) > _SAME_CLOCK_SECONDS else 0.0  # the machine was started again

    def step(self, new: Step, records: RankRecords) -> tuple[float, float] | None:
        """Drop the steps that are repeated from `new` on; return the time of the gap, if there was one."""
        if not self._is_resuming:
            return None
        self._is_resuming = False
        records.steps = [step for step in records.steps if step.step < new.step]
        records.logs = [log for log in records.logs if log.step < new.step]
        return (records.steps[-1].end, new.begin) if records.steps else None


def is_newcomer(start: Mapping[str, Any]) -> bool:
    """Return whether the worker with this `start` row joined after the start: ranks of the start are below the size."""
    is_further = is_count(start.get("rank")) and is_count(start.get("size")) and bool(start["rank"] >= start["size"])
    return is_further and not start.get("server")
