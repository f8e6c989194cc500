"""A run after its warm-up, as the topics of the report and the closing line measure it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

from quorate.records.rows import Step
from quorate.report.figures.lateness import Meetings, Skew, meetings_of, skew_of
from quorate.report.figures.rounds import RoundFigures, figures_of_rounds
from quorate.report.figures.throughput import Amounts, Window, window_of
from quorate.report.figures.time_use import Spent, spent_in
from quorate.report.reading.rounds import Merged, last_arrivals, wait_for_all
from quorate.report.reading.run import RunRecords


@dataclass(frozen=True)
class MeasuredRun:
    """The records of a run, and the figures that several topics are made of; each is computed once."""

    records: RunRecords
    warm_up: int
    """The number of first steps that do not count."""
    _: KW_ONLY
    merged: Sequence[Merged]
    """The rounds that were applied; none under strategies without a quorum."""
    seed: int = 0
    metric: str | None = None
    """The name of its quality in the logs."""

    @cached_property
    def window(self) -> Window | None:
        """The time in which workers were at work."""
        return window_of(self.records, self.warm_up)

    @cached_property
    def amounts(self) -> Amounts:
        """The running totals of all workers."""
        return Amounts.of(self.records)

    @cached_property
    def steps(self) -> dict[int, list[Step]]:
        """The steps that measure, by rank."""
        return self.records.after(self.warm_up)

    @cached_property
    def warm(self) -> dict[int, list[Step]]:
        """The steps after the warm-up, by rank."""
        return self.records.warm(self.warm_up)

    @cached_property
    def meetings(self) -> Meetings:
        """The meetings of the steps that measure, without newcomers if replicas step independently."""
        distributed = (rank.distributed for rank in self.records.ranks)
        steps = comparable(self.steps, self.records.newcomers, distributed)
        return meetings_of(steps, is_together=wait_for_all(self.merged) if self.merged else None)

    @cached_property
    def skew(self) -> Skew | None:
        """The lateness of its ranks; None if no two ever met."""
        return skew_of(self.meetings, self.steps, self.warm, self.records.newcomers)

    @property
    def last_arrivals(self) -> dict[int, float] | None:
        """The arrival of the last gradient of each update; None without a quorum."""
        return last_arrivals(self.merged) if self.merged else None

    @cached_property
    def spent(self) -> list[Spent]:
        """The uses of the time of the steps that measure."""
        return spent_in(self.meetings, self.last_arrivals)

    @cached_property
    def rounds(self) -> RoundFigures | None:
        """The figures of its rounds; None without any."""
        records = self.records
        return figures_of_rounds(self.merged, records.size, self.window, self.warm, self.spent, records.newcomers)


def comparable(
    steps: Mapping[int, Sequence[Step]], newcomers: Collection[int], distributed: Iterable[Mapping[str, Any]]
) -> dict[int, Sequence[Step]]:
    """Return the steps, by rank, that can be compared by number: without newcomers if replicas step independently.

    `distributed` are the ranks' `distribute` rows.
    """
    left_out = newcomers if any(row.get("replicas_differ", False) for row in distributed) else ()
    return {rank: rank_steps for rank, rank_steps in steps.items() if rank not in left_out}
