"""Records of the gradients that rules and codes have left out, counted over several sums."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

from quorate.aggregation.outcome import Outcome
from quorate.core.telling import tell
from quorate.observe.losses import Losses
from quorate.observe.step_times import StepTimer
from quorate.records.rows import Excluded

SUMS = 10
"""Sums in one row."""
OFTEN, WITHIN = 20, 100
"""A worker with `OFTEN` absurd gradients in at most `WITHIN` sums is reported."""


class ExclusionWatch:
    """The exclusions of one optimizer; the first living rank writes them. Off where records are not kept."""

    def __init__(self, timer: StepTimer, losses: Losses) -> None:
        self._timer, self._losses = timer, losses
        self._sums, self._all = 0, 0
        self._counts: Counter[tuple[int, str]] = Counter()
        self._offences: dict[int, deque[int]] = {}
        """By rank, the numbers of the last sums in which it was absurd."""

    def saw(self, outcome: Outcome | None) -> None:
        """Count the outcome of a sum; None: it used all contributions."""
        self._all += 1
        if outcome is None or len(outcome.absent) == len(outcome.weights):
            return
        for rank in outcome.absurd:
            self._offends(rank, is_told=outcome.is_told)
        self._count(outcome.excluded)

    def saw_round(self, excluded: Iterable[Sequence[Any]]) -> None:
        """Count the ranks that a round has left out, each with the reason."""
        self._count((rank, why) for rank, why in excluded)

    def _count(self, excluded: Iterable[tuple[int, str]]) -> None:
        if self._timer.recorder is None:
            return
        self._sums += 1
        self._counts.update(excluded)
        if self._sums >= SUMS:
            self.tell()

    def _offends(self, rank: int, *, is_told: bool) -> None:
        """Report the first absurd gradient of a worker, and when it has had many."""
        numbers = self._offences.setdefault(rank, deque(maxlen=OFTEN))
        numbers.append(self._all)
        does, over = "counts like any other" if is_told else "is left out", numbers[-1] - numbers[0] + 1
        update = self._timer.rounds + 1
        if self._losses.is_first and len(numbers) == 1:
            tell(
                f"quorate: rank {rank}'s gradient in update {update} is far out of proportion to the other "
                f"gradients; it {does}\n"
            )
        elif self._losses.is_first and len(numbers) == OFTEN and over <= WITHIN:
            seen = f"rank {rank}'s gradients were absurd in {OFTEN} of {over} updates"
            tell(f"quorate: {seen}; look at that worker, or train without it\n")
            numbers.clear()
            numbers.append(self._all)

    def tell(self) -> None:
        """Write the counts since the last row, if any rank was left out."""
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
