"""The life of one learner: workers in lock step, of which some fail; when they train, and where the time goes.

A learner is elastic, or it is not. An elastic one stops after a death, continues with the live workers, and stops again
when the dead come back; it is dead only while all its workers are dead. Another learner is dead with the first death,
until all its workers are there again. A learner that was dead has lost its state. If it is alone, it continues from its
last checkpoint; otherwise from the newest state of the other learners, without its work since it last contributed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from quorate.inject.failures import Kind


class Stroke(NamedTuple):
    """A failure of one learner; ranks count from the learner's first."""

    time: float
    ranks: range
    kind: Kind
    seconds: float
    factor: float


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms of a learner's life. Times in seconds."""

    size: int
    is_elastic: bool
    step: float
    detect: float
    silence: float
    reshard: float
    join: float
    """For how long the live workers stop when others come back."""
    slice: int
    back: float
    """From a death until a worker is in its place, and could train."""
    absorbs: bool
    """Whether a death during a stop is handled in the same stop."""
    checkpoint: float = math.inf
    """Work between two checkpoints. Infinite: none, the state is with other learners, or nothing is kept."""
    save: float = 0.0
    is_alone: bool = True
    hands_in: float = 0.0
    """Work of one turn after which it contributes to the other learners."""
    behind: float = 0.0
    """Work that is not in the model, besides the work since it last contributed."""


class Stretch(NamedTuple):
    """Training without a break, by as many workers, at one speed."""

    begin: float
    end: float
    rate: float
    """Relative speed: steps, over those without slow workers."""
    live: int
    dropped: float
    """Seconds of work that are lost at its end; infinite: all, as the learner is dead."""


@dataclass
class Lived:
    """The result of a life. Worker-seconds: `worked` is active time, which includes `saving` and `lost`."""

    size: int
    eras: list[Stretch] = field(default_factory=list)
    worked: float = 0.0
    saving: float = 0.0
    lost: float = 0.0
    """Work that is not in the model: incomplete steps, and work since the last checkpoint or contribution."""
    down: float = 0.0
    """Time of workers that are dead, or idle with a dead one."""
    stopped: float = 0.0
    """Time of live workers whose learner has stopped."""
    waiting: float = 0.0
    """Time of workers that wait for a slow or silent one."""


def life(terms: Terms, strokes: Sequence[Stroke], until: float) -> Lived:
    """Simulate the life from 0 to `until`."""
    learner = _Learner(terms, until)
    for stroke in strokes:
        if stroke.time >= until:
            break
        learner.live_until(stroke.time)
        learner.struck(stroke)
    learner.live_until(until)
    return learner.lived


class _Learner:
    def __init__(self, terms: Terms, until: float) -> None:
        self.terms, self.until = terms, until
        self.lived = Lived(terms.size)
        self._now = 0.0
        self._live = terms.size
        self._stop = -1.0
        """When it goes on; negative: it trains."""
        self._gone = False
        self._out: set[int] = set()
        """Slices that are out, including those that are back and enter when the stop ends."""
        self._back: list[tuple[float, int]] = []
        self._ready: list[int] = []
        self._silent: list[tuple[float, int]] = []
        self._slow: list[tuple[float, float]] = []
        self._done = 0.0
        """Seconds of work since it got its state."""

    def live_until(self, time: float) -> None:
        while True:
            ends = min(
                time,
                self._stop if self._stop >= 0 else math.inf,
                self._back[0][0] if self._back else math.inf,
                min(self._silent)[0] if self._silent else math.inf,
                min(self._slow)[0] if self._slow else math.inf,
            )
            if ends > self._now:
                self._advance(ends)
            elif ends == time:
                return
            self._silent = [silence for silence in self._silent if silence[0] > ends] if self._silent else self._silent
            self._slow = [slow_time for slow_time in self._slow if slow_time[0] > ends] if self._slow else self._slow
            if self._back and self._back[0][0] <= ends:
                self._come_back(ends)
            if 0 <= self._stop <= ends:
                self._go_on()

    def _advance(self, to: float) -> None:
        lived, live, took = self.lived, self._live, to - self._now
        lived.down += (self.terms.size - live) * took
        if self._stop >= 0:
            lived.stopped += live * took
        elif self._silent:
            silent = min(live, sum(count for _, count in self._silent))
            lived.down += silent * took
            lived.waiting += (live - silent) * took
        elif live:
            rate = 1.0 / max(factor for _, factor in self._slow) if self._slow else 1.0
            work = took * rate
            lived.worked += live * work
            lived.waiting += live * (took - work)
            lived.saving += live * (self._saving(self._done + work) - self._saving(self._done))
            self._done += work
            lived.eras.append(Stretch(self._now, to, rate, live, 0.0))
        self._now = to

    def _saving(self, done: float) -> float:
        """Return the seconds of the first `done` in which checkpoints were saved."""
        terms = self.terms
        if terms.save == 0.0 or terms.checkpoint == math.inf:
            return 0.0
        times, rest = divmod(done, terms.checkpoint + terms.save)
        return times * terms.save + max(0.0, rest - terms.checkpoint)

    # -- deaths

    def struck(self, stroke: Stroke) -> None:
        terms, (now, ranks, kind, seconds, factor) = self.terms, stroke
        if kind == "slow":
            if not self._gone:
                self._slow.append((now + seconds, factor))
        elif kind == "death":
            self._dies(ranks, now + terms.back)
        elif terms.is_elastic and seconds > terms.silence and self._leaves(ranks) < self._live:
            self._dies(ranks, now + seconds)
        elif not self._gone:
            self._silent.append((now + seconds, len(ranks)))

    def _slices(self, ranks: range) -> list[int]:
        each = self.terms.slice
        return [
            number for number in range(ranks.start // each, (ranks.stop - 1) // each + 1) if number not in self._out
        ]

    def _of(self, piece: int) -> int:
        each = self.terms.slice
        return min(each, self.terms.size - piece * each)

    def _leaves(self, ranks: range) -> int:
        return sum(map(self._of, self._slices(ranks)))

    def _dies(self, ranks: range, back: float) -> None:
        terms, now = self.terms, self._now
        struck = self._slices(ranks)
        if not struck:
            return
        trained = self._stop < 0
        if not terms.is_elastic:
            if trained:
                self._lose_state()
            if trained or not terms.absorbs:
                self._stop = max(self._stop, back)
            else:
                return  # a spare takes its place in the same stop
        left = self._live - sum(map(self._of, struck))
        if terms.is_elastic:
            if left == 0:
                if not self._gone:
                    self._lose_state()
                self._stop = math.inf
            elif trained:
                self._drop(self._done % terms.step if self._done else 0.0)
                self._stop = now + terms.detect + terms.reshard
            elif not terms.absorbs:
                self._stop = max(self._stop, now + terms.detect + terms.reshard)
        self._live = left
        self._out.update(struck)
        for piece in struck:
            heappush(self._back, (back, piece))

    def _drop(self, work: float) -> None:
        """Lose the last `work` seconds of its work."""
        lived = self.lived
        work = min(work, self._done)
        self._done -= work
        lived.lost += min(self._live * work, lived.worked - lived.saving - lived.lost)
        if lived.eras and work:
            lived.eras[-1] = lived.eras[-1]._replace(dropped=work)

    def _lose_state(self) -> None:
        terms = self.terms
        if not terms.is_alone:
            self._drop(self._done % terms.hands_in + terms.behind if terms.hands_in else 0.0)
        elif terms.checkpoint == math.inf:
            self._drop(self._done)
        else:
            self._drop(min(self._done % (terms.checkpoint + terms.save), terms.checkpoint))
        if self.lived.eras:
            self.lived.eras[-1] = self.lived.eras[-1]._replace(dropped=math.inf)
        self._done, self._gone = 0.0, True
        self._silent, self._slow = [], []

    # -- going on

    def _come_back(self, now: float) -> None:
        has_returned = False
        while self._back and self._back[0][0] <= now:
            self._ready.append(heappop(self._back)[1])
            has_returned = True
        if has_returned and self.terms.is_elastic and (self._stop < 0 or self._stop == math.inf):
            self._stop = now + (0.0 if self._gone else self.terms.join)  # where all were dead, nobody stands

    def _go_on(self) -> None:
        self._out.difference_update(self._ready)
        self._live += sum(map(self._of, self._ready))
        self._ready = []
        self._stop, self._gone = (-1.0, False) if self._live else (math.inf, True)
