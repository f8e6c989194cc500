"""The records of one rank as an object: its rows in order, on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.records.records import records_of, rows
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
    Memory,
    Noise,
    Outer,
    Served,
    Start,
    Step,
)
from quorate.report.reading.clocks import SAME, RunClock
from quorate.report.reading.ends import HEAD_BYTES, first_and_last_rows
from quorate.report.reading.events import moved
from quorate.report.reading.joinings import is_newcomer
from quorate.report.reading.rounds import RoundRecord, number_updates, round_of, take_back
from quorate.report.reading.rows import row_of, sound_parts
from quorate.report.reading.served import served_of
from quorate.report.reading.sessions import Sessions
from quorate.report.reading.sound import has_numbers
from quorate.report.reading.spans import Spans


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
        elif kind == "log" and (log := row_of(Log, row)) is not None:
            records.logs.append(log)
        elif kind == "distance" and (distance := row_of(Distance, row)) is not None:
            records.distances.append(distance)
        elif kind == "outer" and (outer := row_of(Outer, row)) is not None:
            records.outers.append(outer)
        elif kind == "noise" and (noise := row_of(Noise, row)) is not None and noise.gradients > 1:
            records.noises.append(noise)
        elif kind == "excluded" and (excluded := row_of(Excluded, row)) is not None:
            records.exclusions.append(excluded)
        elif kind == "layers" and (layers := row_of(Layers, row)) is not None:
            records.layers = records.layers or layers
        elif kind == "served" and (served := served_of(row)) is not None:
            records.served.append(served)
        elif kind == "clock" and not sessions.is_moved and (offset := row_of(ClockOffset, row)) is not None:
            records.offsets.append(offset)
        elif kind == "gone" and (death := row_of(Gone, row)) is not None:
            records.deaths.append(death)
        elif kind == "joined" and (joining := row_of(Joined, row)) is not None:
            records.joinings.append(joining)
        elif kind == "evaluate" and (evaluate := row_of(Evaluate, row)) is not None:
            spans.append((evaluate.begin, evaluate.end))
        elif kind == "start" and not records.start:
            records.start = sound_parts(row, Start)
        elif kind == "memory" and (memory := row_of(Memory, row)) is not None:
            records.memory.append(memory)
        elif kind == "distribute":
            distributed = sound_parts(row, Distribute)
            records.distributed = records.distributed or distributed
            records.foreseen |= (
                {str(distributed.get("optimizer")): distributed["foreseen"]} if distributed.get("foreseen") else {}
            )
        elif kind == "end":
            records.end = sound_parts(row, End)
    records.evaluations = Spans(spans)
    return records
