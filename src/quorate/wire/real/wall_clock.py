"""The clock of the real world."""

from __future__ import annotations

import time


class WallClock:
    """The wall clock: monotonic seconds."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pause(self) -> None:
        """Do nothing: processes run at the same time."""

    def compute(self, share: float) -> None:
        """Do nothing: real computing takes its own time."""
