"""One worker's view of the virtual clock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from quorate.core.errors import ConfigurationError

if TYPE_CHECKING:
    from quorate.wire.virtual.compute import ComputeModel
    from quorate.wire.virtual.scheduler import Scheduler

WHOLE_STEP = 1 - 1e-6
"""Sum of shares at which a step counts as computed."""


class VirtualClock:
    """See `contracts.Clock`. Time passes only while the worker sleeps, waits or calls `compute`."""

    def __init__(self, scheduler: Scheduler, rank: int, compute: ComputeModel) -> None:
        self._scheduler = scheduler
        self._rank = rank
        self._compute = compute
        self._step = 0
        self._share = 0.0
        self._step_seconds = 0.0

    def now(self) -> float:
        """Return seconds since the start of the world."""
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise ConfigurationError(f"a worker sleeps for a finite number of seconds from 0 on, not {seconds!r}")
        self._scheduler.sleep(seconds)

    def pause(self) -> None:
        self._scheduler.pause()

    def compute(self, share: float) -> None:
        """Let `share` of this step's modelled time pass; a new step begins when the shares have reached 1."""
        if not 0 <= share <= 1:
            raise ConfigurationError(f"a share of a step's compute time is from 0 to 1, not {share!r}")
        if self._share == 0.0:
            self._step_seconds = self._compute(self._rank, self._step)
        self._share += share
        if self._share >= WHOLE_STEP:
            self._share = 0.0
            self._step += 1
        self.sleep(share * self._step_seconds)
