"""Facts about all ranks that the timeline of each one needs: the clock, and who waited for whom."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.records.records import ranks_in, records_of, rows
from quorate.records.rows import ClockOffset, Start, Step
from quorate.report.reading.clocks import RunClock, run_clocks
from quorate.report.reading.rounds import Merged
from quorate.report.reading.run import read_run
from quorate.report.reading.sessions import Sessions
from quorate.report.reading.sound import has_numbers, row_of, sound_parts

Key = tuple[str, int, int]
"""A meeting: the optimizer, the round, and the number of a rank's step within that round."""


@dataclass(frozen=True)
class Survey:
    """The result of `survey`. Times are seconds on the clock of all ranks."""

    first: float
    """The time of the first event."""
    last: Mapping[Key, tuple[float, int]]
    """The last arrival that was waited for at each meeting, and its rank."""
    rounds: list[Merged]
    """Rounds under a quorum."""
    has_steps: bool


@dataclass
class Keys:
    """Counts one rank's steps within rounds."""

    newest: dict[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, step: Step) -> Key:
        """Return the meeting of the next step of this rank."""
        before, place = self.newest.get(step.optimizer, (None, 0))
        place = place + 1 if before == step.round else 0
        self.newest[step.optimizer] = (step.round, place)
        return step.optimizer, step.round, place


def heads_of(folder: Path) -> tuple[dict[int, dict[str, Any]], dict[int, RunClock]]:
    """Return by rank the sound parts of the first `start` row, and its clock."""
    starts: dict[int, dict[str, Any]] = {}
    offsets: dict[int, list[ClockOffset]] = {}
    for rank in ranks_in(folder):
        starts[rank], offsets[rank] = {}, []
        sessions = Sessions()
        for row in map(sessions.row, rows(records_of(folder, rank), ("start", "clock"))):
            if row["kind"] == "start" and not starts[rank]:
                starts[rank] = sound_parts(row, Start)
            offset = row_of(ClockOffset, row) if row["kind"] == "clock" and not sessions.is_moved else None
            if offset is not None:
                offsets[rank].append(offset)
    return starts, run_clocks(starts, offsets)


def survey(folder: Path, clocks: Mapping[int, RunClock]) -> Survey:
    """Read all rows once; `clocks` are those of the ranks.

    Where everybody waits for everybody, those that met waited for the last of them. Under a quorum they waited for the
    last gradient of their round; to find it, all steps are kept in memory.
    """
    first = math.inf
    last: dict[Key, tuple[float, int]] = {}
    has_rounds = False
    for rank, clock in clocks.items():
        keys = Keys()
        for row in rows(records_of(folder, rank)):
            times = [clock.at(row[name]) for name in ("begin", "time") if has_numbers(row, name)]
            first = min([first, *times])
            has_rounds |= row["kind"] == "round"
            step = row_of(Step, row) if row["kind"] == "step" else None
            if step is not None:
                key, arrive = keys.of(step), clock.at(step.arrive)
                if key not in last or arrive > last[key][0]:
                    last[key] = (arrive, rank)
    if not has_rounds:
        return Survey(first, last, [], bool(last))
    rounds = read_run(folder).merged()
    return Survey(first, _last_of(rounds), rounds, bool(last))


def _last_of(rounds: list[Merged]) -> dict[Key, tuple[float, int]]:
    return {
        (last.step.optimizer, round.round.update, 0): (last.step.arrive, last.rank)
        for round in rounds
        if round.gradients and round.round.update is not None
        for last in [max(round.gradients, key=lambda gradient: gradient.step.arrive)]
    }
