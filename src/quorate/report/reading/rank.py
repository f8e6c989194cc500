"""What one rank left, as an object: its rows in order, on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.records.exclusion_rows import Excluded
from quorate.records.layer_rows import Layers
from quorate.records.memory_rows import Memory
from quorate.records.noise_rows import Noise
from quorate.records.records import records_of, rows
from quorate.records.rows import (
    ClockOffset,
    Distance,
    Distribute,
    End,
    Evaluate,
    Gone,
    Joined,
    Log,
    Outer,
    Start,
    Step,
)
from quorate.records.served_rows import Served
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
    """What one rank left. Times are seconds on the clock of the run, the same for all ranks."""

    rank: int
    start: dict[str, Any] = field(default_factory=dict)
    distributed: dict[str, Any] = field(default_factory=dict)
    """What the first optimizer was given to."""
    steps: list[Step] = field(default_factory=list)
    """Of the first optimizer, in order; evaluation is not within any of them."""
    others: list[Step] = field(default_factory=list)
    """Of further optimizers."""
    rounds: list[RoundRecord] = field(default_factory=list)
    """Of the first optimizer; only the first rank that is left records them, under strategies with a quorum."""
    logs: list[Log] = field(default_factory=list)
    distances: list[Distance] = field(default_factory=list)
    outers: list[Outer] = field(default_factory=list)
    noises: list[Noise] = field(default_factory=list)
    exclusions: list[Excluded] = field(default_factory=list)
    layers: Layers | None = None
    """Of the first optimizer that has said something of them."""
    served: list[Served] = field(default_factory=list)
    """What its server did for the first optimizer."""
    offsets: list[ClockOffset] = field(default_factory=list)
    """What it measured of its clock."""
    clock: RunClock = SAME
    """What its own clock showed, on that of the run."""
    clock_uncertainty: float = 0.0
    """Seconds by which that is wrong at most, of its steps."""
    deaths: list[Gone] = field(default_factory=list)
    """Of other ranks, as this one told them."""
    joinings: list[Joined] = field(default_factory=list)
    """Likewise."""
    memory: list[Memory] = field(default_factory=list)
    foreseen: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes that it was to hold, by optimizer."""
    evaluations: Spans = field(default_factory=Spans)
    after_evaluation: set[int] = field(default_factory=set)
    """The numbers of the steps that came next after an evaluation: they wait for others who still evaluate."""
    end: dict[str, Any] | None = None
    """None where the worker did not live to write it."""

    @property
    def is_newcomer(self) -> bool:
        """Whether it joined when the run was under way: its step 1 is none of the others'."""
        return is_newcomer(self.start)

    def training_seconds(self, time: float, origin: float) -> float:
        """From `origin` to `time`, without this rank's evaluations."""
        return max(0.0, time - origin - (self.evaluations.before(time) - self.evaluations.before(origin)))

    def move(self, clock: RunClock) -> None:
        """Put it on the clock of the run; `clock` is its own."""
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
        for said, name in ((self.start, "now"), (self.end or {}, "time")):
            if has_numbers(said, name):
                said[name] = clock.at(said[name])


def read_rank(folder: Path, rank: int, most_bytes: int | None) -> RankRecords:
    """Read its file in `folder`; of one longer than `most_bytes` only the first rows, and the last `most_bytes`."""
    found = RankRecords(rank)
    spans: list[tuple[float, float]] = []
    fresh: list[RoundRecord] = []
    sessions = Sessions()
    path = records_of(folder, rank)
    is_long = most_bytes is not None and path.stat().st_size > most_bytes + HEAD_BYTES
    for row in first_and_last_rows(path, most_bytes) if is_long and most_bytes is not None else rows(path):
        row, kind = sessions.row(row), row["kind"]
        if kind == "step" and (step := row_of(Step, row)) is not None:
            pause = sessions.step(step, found)
            spans += [pause] if pause else []
            found.steps.append(step)
            number_updates([one for one in fresh if one.optimizer in (None, step.optimizer)], step)
            fresh = [one for one in fresh if one.optimizer not in (None, step.optimizer)]
        elif kind == "round" and (merged := round_of(row)) is not None:
            for rounds in (found.rounds, fresh):
                take_back(rounds, merged)
                rounds.append(merged)
        elif kind == "log" and (log := row_of(Log, row)) is not None:
            found.logs.append(log)
        elif kind == "distance" and (distance := row_of(Distance, row)) is not None:
            found.distances.append(distance)
        elif kind == "outer" and (outer := row_of(Outer, row)) is not None:
            found.outers.append(outer)
        elif kind == "noise" and (noise := row_of(Noise, row)) is not None and noise.gradients > 1:
            found.noises.append(noise)
        elif kind == "excluded" and (excluded := row_of(Excluded, row)) is not None:
            found.exclusions.append(excluded)
        elif kind == "layers" and (layers := row_of(Layers, row)) is not None:
            found.layers = found.layers or layers
        elif kind == "served" and (served := served_of(row)) is not None:
            found.served.append(served)
        elif kind == "clock" and not sessions.is_moved and (offset := row_of(ClockOffset, row)) is not None:
            found.offsets.append(offset)
        elif kind == "gone" and (death := row_of(Gone, row)) is not None:
            found.deaths.append(death)
        elif kind == "joined" and (joining := row_of(Joined, row)) is not None:
            found.joinings.append(joining)
        elif kind == "evaluate" and (evaluate := row_of(Evaluate, row)) is not None:
            spans.append((evaluate.begin, evaluate.end))
        elif kind == "start" and not found.start:
            found.start = sound_parts(row, Start)
        elif kind == "memory" and (memory := row_of(Memory, row)) is not None:
            found.memory.append(memory)
        elif kind == "distribute":
            told = sound_parts(row, Distribute)
            found.distributed = found.distributed or told
            found.foreseen |= {str(told.get("optimizer")): told["foreseen"]} if told.get("foreseen") else {}
        elif kind == "end":
            found.end = sound_parts(row, End)
    found.evaluations = Spans(spans)
    return found
