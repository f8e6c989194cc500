"""The clock of the real world."""

from __future__ import annotations

import time


class WallClock:
    """The wall clock: monotonic seconds."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def pause(self) -> None:
        """Do nothing: processes run at the same time."""

    def compute(self, share: float) -> None:
        """Do nothing: real computing takes its own time."""
