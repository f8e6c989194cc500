"""The goodput of one strategy, with so many workers in so many learners, under one schedule of failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.inject.failures import Failure, Failures
from quorate.simulation.failing.exchanges import Exchanges
from quorate.simulation.failing.life import Terms, life
from quorate.simulation.failing.recovery import Recovery
from quorate.simulation.failing.schedule import Learners, Struck, counted, failures_until
from quorate.simulation.failing.together import Lives, Spent, in_meetings, in_rounds, merging
from quorate.simulation.failing.ways import Way, way_of

MOST_LEARNERS = 4096


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The result. All but `uptime` and `checkpoint` are shares of all worker-seconds, and add up to 1."""

    goodput: float
    """Steps in the final model, over those possible without failures and exchanges."""
    lost: float
    """Steps that were taken, and are not in the model."""
    down: float
    """Workers that are dead, silent, or idle with a dead one."""
    stopped: float
    """Live workers whose learner detects a death, reshards, or starts again."""
    waiting: float
    """Waiting for a slow or silent worker, or for other learners."""
    moving: float
    """Exchanges."""
    saving: float
    """Checkpoints."""
    uptime: float
    """The share of time in which at least one learner trains; where rounds need a quorum, as many as that."""
    checkpoint: float | None
    """Seconds of work between two checkpoints; None where none are saved."""
    failures: Struck

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `simulate.json`."""
        return asdict(self)


def play(
    failures: Failures,
    workers: int,
    *,
    learners: int = 1,
    strategy: str = "all-reduce",
    settings: Mapping[str, object] | None = None,
    seconds: float,
    seed: int = 0,
    step: float = 1.0,
    recovery: Recovery | None = None,
    exchanges: Exchanges | None = None,
    schedule: Sequence[Failure] | None = None,
) -> Goodput:
    """Return goodput and uptime of `workers` in `learners` learners, over so many seconds, under `failures`.

    `step` is the duration of a step without exchanges. `schedule` is, unless given, that of
    `failures.schedule(workers, seed)`, of which these seconds are used. Raises `ConfigurationError` for arguments that
    exclude each other.
    """
    way = way_of(strategy, settings or {})
    case = Played(way=way, workers=workers, learners=learners, seconds=seconds, step=step, failures=failures,
                  recovery=recovery or Recovery(), exchanges=exchanges or Exchanges())  # fmt: skip
    case.check()
    drawn = failures_until(failures, workers, seed, seconds) if schedule is None else schedule
    return case.play([failure for failure in drawn if failure.time < seconds])


@dataclass(frozen=True, kw_only=True)
class Played:
    """One case; the checked arguments of `play`."""

    way: Way
    workers: int
    learners: int
    seconds: float
    step: float
    failures: Failures
    recovery: Recovery
    exchanges: Exchanges

    def check(self) -> None:
        """Raise `ConfigurationError` for arguments that exclude each other."""
        if not 1 <= self.learners <= min(self.workers, MOST_LEARNERS):
            most = min(self.workers, MOST_LEARNERS)
            raise ConfigurationError(
                f"{self.learners:,} learners cannot be made of {self.workers:,} workers; it must be from 1 to {most:,}"
            )
        if self.way.meets == "one learner" and self.learners > 1:
            raise ConfigurationError(
                f"under {self.way.name} all workers form one learner; {self.learners} are too many"
            )
        if not self.seconds > 0 or not self.step > 0:
            raise ConfigurationError(f"{self.seconds:g} s with steps of {self.step:g} s: both must be above 0")
        self.way.check(self.learners)

    @property
    def is_elastic(self) -> bool:
        """Whether the other workers of a learner go on after a death."""
        return self.way.goes_on if self.way.meets == "one learner" else self.recovery.inside == "elastic"

    @property
    def _alone(self) -> bool:
        return self.learners == 1

    @property
    def _back(self) -> float:
        """Seconds from a death until a worker could train in that place."""
        spare = self.recovery.spare
        back = (self.failures.repair if spare is None else spare) + self.failures.restart
        return back if self.is_elastic else back + self.recovery.detect

    @property
    def checkpoint(self) -> float:
        """Work between two checkpoints; infinite where none are saved: others have the state, or it ends before."""
        if not self._alone:
            return math.inf
        period = self.recovery.period(self._rate_of_losses(), self._step_and_exchange)
        return period if period < self.seconds else math.inf

    def _rate_of_losses(self) -> float:
        """Return how many times a second the state of all is lost: with any death, or with the last live slice."""
        mortal = 1 - self.failures.stops - self.failures.slows
        struck = mortal / self.failures.between(self.workers)
        if not self.is_elastic or not struck:
            return struck
        slices = math.ceil(self.workers / self.recovery.slice)
        each = mortal / self.failures.mtbf * self.workers / slices
        away = self._back
        if slices == 1 or not away:
            return struck if slices == 1 else 0.0
        dead_share = each * away / (1 + each * away)
        log = math.log(slices) + slices * math.log(dead_share) - math.log(away)
        whole = struck * self.failures.bursts if self.failures.together >= self.workers else 0.0
        return math.exp(log) + whole if log > -700 else whole

    @property
    def _exchange(self) -> float:
        """Seconds that exchanges add to a step, within a learner and between learners."""
        way, exchanges = self.way, self.exchanges
        within = exchanges.within(math.ceil(self.workers / self.learners), self.step)
        if way.meets != "rounds" or self._alone:
            return within
        steps = way.period if way.unit == "steps" else max(1.0, way.period / self.step)
        return within + exchanges.round(self.learners) / steps

    @property
    def _step_and_exchange(self) -> float:
        return self.step + self._exchange

    def _terms(self, size: int) -> Terms:
        recovery, way, step = self.recovery, self.way, self._step_and_exchange
        turn = 0.0 if way.meets == "meetings" else way.work(step) / way.fragments  # meetings see to it themselves
        return Terms(
            size=size,
            is_elastic=self.is_elastic,
            step=step,
            detect=recovery.detect,
            silence=recovery.silence,
            reshard=recovery.reshard,
            join=recovery.joining,
            slice=recovery.slice,
            back=self._back,
            absorbs=recovery.during == "absorb" and (self.is_elastic or recovery.spare is not None),
            checkpoint=self.checkpoint,
            save=recovery.save,
            is_alone=self._alone,
            hands_in=turn,
            behind=turn * (way.fragments - 1) / 2,
        )

    def play(self, schedule: Sequence[Failure]) -> Goodput:
        """Return the goodput under these failures."""
        among = Learners(self.workers, self.learners)
        strokes = among.divided(schedule)
        terms = {size: self._terms(size) for size in {among.size(0), among.size(self.learners - 1)}}
        lives = Lives(
            struck=[life(terms[among.size(learner)], strokes[learner], self.seconds) for learner in sorted(strokes)],
            untouched=[among.size(learner) for learner in range(self.learners) if learner not in strokes],
            seconds=self.seconds,
        )
        if not lives.struck and self._alone:  # checkpoints are saved all the same
            lives = Lives(struck=[life(terms[self.workers], (), self.seconds)], untouched=(), seconds=self.seconds)
        return self._goodput(self._spent(lives), schedule)

    def _spent(self, lives: Lives) -> Spent:
        way, step = self.way, self._step_and_exchange
        if way.meets == "meetings" and not self._alone:
            between = self.exchanges.mean(self.learners)
            spent = in_meetings(lives, way, way.work(step), between, self.recovery.detect)
        elif way.meets == "rounds" and not self._alone:
            spent = in_rounds(lives, way, self.recovery.detect)
        else:
            spent = merging(lives, way)
        moved = spent.useful * self._exchange / step
        spent.useful, spent.moving = spent.useful - moved, spent.moving + moved
        return spent

    def _goodput(self, spent: Spent, schedule: Sequence[Failure]) -> Goodput:
        possible = self.workers * self.seconds
        return Goodput(
            goodput=spent.useful / possible,
            lost=spent.lost / possible,
            down=spent.down / possible,
            stopped=spent.stopped / possible,
            waiting=spent.waiting / possible,
            moving=spent.moving / possible,
            saving=spent.saving / possible,
            uptime=spent.up / self.seconds,
            checkpoint=None if self.checkpoint == math.inf else self.checkpoint,
            failures=counted(schedule),
        )
