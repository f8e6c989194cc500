"""Making a worker late on purpose: injected imbalance and pace, spent once a step before its backward pass.

Before the backward pass, because exchanges that overlap with it begin inside: a worker that is slow shows what it has
later. It is the same place for every strategy and for torch DDP.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.contracts import Clock
from quorate.core.durations import FORWARD_SHARE
from quorate.data.consumption import consumed
from quorate.inject.imbalance import Imbalance
from quorate.inject.pace import Pace
from quorate.inject.slow_times import SlowTimes
from quorate.observe.step_times import StepTimer
from quorate.wire.current import Place


class Pacing:
    """Holds one worker back, step by step: at least the pace since the step began, and then the imbalance on top, and
    what a `slow` time adds.

    What is said in multiples is of the pace; without one, of the time since the step began, taken as
    `FORWARD_SHARE` of the whole step.
    """

    def __init__(
        self, place: Place, imbalance: Imbalance | None, pace: Pace | None, slow: SlowTimes | None = None
    ) -> None:
        self._place, self._imbalance, self._pace, self._slow = place, imbalance, pace, slow
        self._held = 0

    def hold(self, timer: StepTimer) -> None:
        """Called before every outermost backward pass; sleeps at the first one of each of `timer`'s steps."""
        if not timer.is_first or self._held > timer.steps:
            return
        step, self._held = timer.steps, timer.steps + 1
        clock: Clock = self._place.wire.clock
        rank = self._place.wire.rank
        now = clock.now()
        since = now - timer.begin
        paced = 0.0
        if self._pace is not None:
            paced = self._pace.seconds(rank, step, consumed(self._place).tokens)
        seconds = up_to_pace = max(0.0, paced - since)
        base = max(paced, since) if paced else since / FORWARD_SHARE
        if self._imbalance is not None:
            seconds += self._imbalance.delay(rank, step, base)
        if self._slow is not None:
            seconds += (self._slow.factor(now) - 1) * base
        held = 0.0
        if seconds > 0:
            clock.sleep(seconds)
            held = clock.now() - now
            timer.spent("delay", held)
        if self._pace is not None:
            timer.pace = min(up_to_pace, held)


@dataclass
class Injected:
    """One of each worker; `injected(place)` gives it."""

    pacing: Pacing | None = None
    """Where something is injected."""


def injected(place: Place) -> Injected:
    """That of the worker."""
    return place.context(Injected)
