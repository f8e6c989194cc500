"""The slow times of one worker under `--chaos`, which it draws itself from the launcher's schedule."""

from __future__ import annotations

from collections.abc import Callable

from quorate.inject.failures import Failures


class SlowTimes:
    """Factors by which the steps of `rank` take longer, by the clock; cost: some microseconds a step.

    `began` returns the time 0 of the schedule, None while it has not begun. Failures before this worker's first step
    are skipped. Where slow times overlap, the greatest factor counts.
    """

    def __init__(
        self, failures: Failures, workers: int, seed: int, rank: int, began: Callable[[], float | None]
    ) -> None:
        self._schedule, self._rank, self._ask = failures.schedule(workers, seed), rank, began
        self._next = next(self._schedule)
        self._began: float | None = None
        self._came: float | None = None
        self._now: list[tuple[float, float]] = []
        """The end and the factor of each current slow time."""

    def factor(self, now: float) -> float:
        """Return the factor of a step in progress; 1 outside slow times."""
        if self._came is None:
            self._came = now
        if self._began is None:
            self._began = self._ask()
        if self._began is None:
            return 1.0
        while (at := self._began + self._next.time) <= now:
            if self._next.kind == "slow" and self._rank in self._next.ranks and at >= self._came:
                self._now.append((at + self._next.seconds, self._next.factor))
            self._next = next(self._schedule)
        self._now = [(until, factor) for until, factor in self._now if until > now]
        return max((factor for _, factor in self._now), default=1.0)
