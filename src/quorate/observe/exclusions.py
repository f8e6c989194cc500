"""Whose gradients rules and codes have left out, counted over some sums at a time, into the records."""

from __future__ import annotations

from collections import Counter

from quorate.core.exclusion_rows import Excluded
from quorate.observe.losses import Losses
from quorate.observe.step_times import StepTimer
from quorate.reducers.outcome import Outcome

SUMS = 10
"""In one row."""


class ExclusionWatch:
    """Of one optimizer's worker; the first rank that is left writes. Off where nobody reads the records."""

    def __init__(self, timer: StepTimer, losses: Losses) -> None:
        self._timer, self._losses = timer, losses
        self._sums = 0
        self._counts: Counter[tuple[int, str]] = Counter()

    def saw(self, outcome: Outcome | None) -> None:
        """What became of a sum; None where everything counts in sums."""
        if outcome is None or self._timer.recorder is None or len(outcome.absent) == len(outcome.weights):
            return
        self._sums += 1
        self._counts.update(outcome.excluded)
        if self._sums >= SUMS:
            self.tell()

    def tell(self) -> None:
        """Write what was counted since the last row, if anybody was left out."""
        recorder, counts, sums = self._timer.recorder, self._counts, self._sums
        self._sums, self._counts = 0, Counter()
        if recorder is None or not counts or not self._losses.is_first:
            return
        recorder.write(
            Excluded(
                step=self._timer.steps + 1,
                time=self._timer.clock.now(),
                optimizer=self._timer.name,
                sums=sums,
                ranks=[[rank, why, count] for (rank, why), count in sorted(counts.items())],
            )
        )
