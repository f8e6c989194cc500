"""Deliberate lateness of a worker: injected imbalance and pace, spent once a step before its backward pass.

Exchanges overlap with the backward pass, so a worker that is slow sends its gradients later if it waits before it. The
place is the same for every strategy and for torch DDP.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.contracts import Wire
from quorate.core.durations import FORWARD_SHARE
from quorate.data.consumption import Consumed
from quorate.inject.failures import SlowTimes
from quorate.inject.imbalance import Imbalance
from quorate.inject.pace import Pace
from quorate.observe.step_times import StepTimer


class Pacing:
    """Holds one worker back in each step: to the pace since the step began, then for the imbalance and a `slow` time.

    Multiples are of the pace; without one, of the time since the step began, taken as `FORWARD_SHARE` of the full step.
    """

    def __init__(
        self,
        wire: Wire,
        consumed: Consumed,
        imbalance: Imbalance | None,
        pace: Pace | None,
        slow: SlowTimes | None = None,
    ) -> None:
        self._clock, self._rank, self._consumed = wire.clock, wire.rank, consumed
        self._imbalance, self._pace, self._slow = imbalance, pace, slow
        self._held = 0

    def hold(self, timer: StepTimer) -> None:
        """Sleep at the first backward pass of each of `timer`'s steps; call it before every outermost one."""
        if not timer.is_first or self._held > timer.steps:
            return
        step, self._held = timer.steps, timer.steps + 1
        clock, rank = self._clock, self._rank
        now = clock.now()
        since = now - timer.begin
        paced = 0.0
        if self._pace is not None:
            paced = self._pace.seconds(rank, step, self._consumed.tokens)
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
    """The lateness of one worker."""

    pacing: Pacing | None = None
