"""Goodput: the share of the possible steps of a run without failures that are in the model in the end."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.inject.pace import parse_pace
from quorate.records.records import CHAOS
from quorate.report.figures.throughput import training_seconds
from quorate.report.reading.rank import RankRecords
from quorate.report.reading.rounds import RoundRecord
from quorate.report.reading.run import RunRecords
from quorate.report.reading.sound import is_count

_BINDS = 1.5
"""A pace holds steps back if they take at most so many times as long."""


@dataclass(frozen=True)
class Goodput:
    """The goodput of one run; steps are those of single workers."""

    useful: float
    """Steps whose work is in the model in the end."""
    made: float
    """Steps that were recorded; those of the last half second of a killed worker are not."""
    possible: float
    """Workers at the start, times seconds of training, by the seconds of an undisturbed step."""
    step_seconds: float
    """The seconds of an undisturbed step."""

    @property
    def share(self) -> float:
        """The goodput: useful steps over possible ones."""
        return self.useful / self.possible

    @property
    def lost(self) -> float:
        """Steps that were recorded, and whose work was lost."""
        return max(0.0, self.made - self.useful)


def goodput_of(run: RunRecords, step_seconds: float | None = None) -> Goodput | None:
    """Return the goodput of a run of which all rows were read; None without steps.

    `step_seconds` is the time of an undisturbed step. By default it is the pace of the run, if it has a fixed one that
    holds steps back. Otherwise it is the median step, which is too long if more than half of all steps are disturbed.
    """
    seconds = training_seconds(run)
    if not seconds:
        return None
    step_seconds = undisturbed_step(run) if step_seconds is None else step_seconds
    made = float(sum(len(rank.steps) for rank in run.ranks))
    useful = _useful(run)
    possible = max(useful, run.size * seconds / step_seconds)  # the median may be too long
    return Goodput(useful, made, possible, step_seconds)


def has_failed(run: RunRecords) -> bool:
    """Return whether a worker died and was outlived, or failures were made on purpose."""
    return bool(run.deaths) or (run.folder / CHAOS).exists()


def undisturbed_step(run: RunRecords) -> float:
    """Return the seconds of an undisturbed step of `run`, which has steps."""
    seconds = sorted(step.end - step.begin for rank in run.ranks for step in rank.steps)
    pace = _fixed_pace(run)
    if pace and seconds[len(seconds) // 10] <= _BINDS * pace:
        return pace
    return statistics.median(seconds)


def _fixed_pace(run: RunRecords) -> float:
    text = run.about.get("pace")
    if not isinstance(text, str):
        return 0.0
    try:
        pace = parse_pace(text, seed=0, size=run.size)
    except ConfigurationError:  # a file of then
        return 0.0
    return 0.0 if pace.traces or pace.needs_tokens else pace.fixed


def _useful(run: RunRecords) -> float:
    """Count the steps whose work was taken in by a round, or by a mean of all."""
    rounds = [merged.round for merged in run.merged()]
    differ = any(rank.distributed.get("replicas_differ", False) for rank in run.ranks)
    if rounds and differ:
        fragments = max(_setting(rank, "fragments", 1) for rank in run.ranks)
        return sum(_steps_in(record, fragments) for record in rounds)
    if rounds:
        return float(sum(record.gradients for record in rounds))
    outlived = {death.rank for death in run.deaths}
    return float(sum(_shared(rank) if rank.rank in outlived else len(rank.steps) for rank in run.ranks))


def _steps_in(record: RoundRecord, fragments: int) -> float:
    """Return the steps in a round: of one fragment its share of the weight, in a pause all of it."""
    return record.weight if record.settles else record.weight / fragments


def _setting(rank: RankRecords, name: str, usual: int) -> int:
    settings = rank.distributed.get("settings")
    value = settings.get(name, usual) if isinstance(settings, dict) else usual
    return value if is_count(value) and value > 0 else usual


def _shared(dead: RankRecords) -> int:
    """Count the steps of a dead worker in which others have a part: under local steps up to its last mean, else all."""
    settings = dead.distributed.get("settings")
    if not (isinstance(settings, dict) and "sync_every" in settings):
        return len(dead.steps)
    last = max(
        (distance.step + 1 for distance in dead.distances), default=0
    )  # the mean is within the step after that one
    return sum(step.step <= last for step in dead.steps)
