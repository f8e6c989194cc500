"""Goodput: of the steps that a run could have made had nothing failed, how many are in the model in the end."""

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
"""How many times as long as a pace steps may take that it holds back."""


@dataclass(frozen=True)
class Goodput:
    """Of one run; steps are those of single workers."""

    useful: float
    """Steps whose work is in the model in the end."""
    made: float
    """Steps that were recorded; a worker that is killed takes along those of its last half second."""
    possible: float
    """Workers at the start, times seconds of training, by the seconds of an undisturbed step."""
    step_seconds: float
    """Of an undisturbed step."""

    @property
    def share(self) -> float:
        """The goodput: useful steps over possible ones."""
        return self.useful / self.possible

    @property
    def lost(self) -> float:
        """Steps that were made and recorded, and came to nothing."""
        return max(0.0, self.made - self.useful)


def goodput_of(run: RunRecords, step_seconds: float | None = None) -> Goodput | None:
    """That of a run of which all rows were read; None without steps.

    `step_seconds` is what an undisturbed step takes: by default the pace of the run, where it has a fixed one that
    holds steps back; else the median step, which is too long where more than half of all steps are disturbed.
    """
    seconds = training_seconds(run)
    if not seconds:
        return None
    step_seconds = undisturbed_step(run) if step_seconds is None else step_seconds
    made = float(sum(len(one.steps) for one in run.ranks))
    useful = _useful(run)
    possible = max(useful, run.size * seconds / step_seconds)  # the median may be too long
    return Goodput(useful, made, possible, step_seconds)


def has_failed(run: RunRecords) -> bool:
    """Whether a worker died and was outlived, or failures were made on purpose."""
    return bool(run.deaths) or (run.folder / CHAOS).exists()


def undisturbed_step(run: RunRecords) -> float:
    """Seconds; `run` has steps."""
    found = sorted(step.end - step.begin for one in run.ranks for step in one.steps)
    pace = _fixed_pace(run)
    if pace and found[len(found) // 10] <= _BINDS * pace:
        return pace
    return statistics.median(found)


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
    """Steps whose work was taken in by a round, or by a mean of all."""
    rounds = [merged.round for merged in run.merged()]
    differ = any(one.distributed.get("replicas_differ", False) for one in run.ranks)
    if rounds and differ:
        fragments = max(_setting(one, "fragments", 1) for one in run.ranks)
        return sum(_steps_in(one, fragments) for one in rounds)
    if rounds:
        return float(sum(one.gradients for one in rounds))
    outlived = {death.rank for death in run.deaths}
    return float(sum(_shared(one) if one.rank in outlived else len(one.steps) for one in run.ranks))


def _steps_in(one: RoundRecord, fragments: int) -> float:
    """Its weight is the steps that were handed in since its fragment was taken last; where all settle, that of all."""
    return one.weight if one.settles else one.weight / fragments


def _setting(one: RankRecords, name: str, usual: int) -> int:
    settings = one.distributed.get("settings")
    found = settings.get(name, usual) if isinstance(settings, dict) else usual
    return found if is_count(found) and found > 0 else usual


def _shared(dead: RankRecords) -> int:
    """Of the steps of a worker that died, those that others have had a part in: under local steps up to its last mean,
    else all."""
    settings = dead.distributed.get("settings")
    if not (isinstance(settings, dict) and "sync_every" in settings):
        return len(dead.steps)
    last = max((one.step + 1 for one in dead.distances), default=0)  # the mean is within the step after that one
    return sum(step.step <= last for step in dead.steps)
