"""The throughput of one run: examples per second, bytes sent per step, and running totals of both."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from quorate.records.rows import Step
from quorate.report.reading.clocks import Spans
from quorate.report.reading.rank import RankRecords
from quorate.report.reading.run import RunRecords


@dataclass(frozen=True)
class Window:
    """A time of a run in which workers were at work, on a clock that stops during evaluations.

    The workers are those of the start, without the dead that were outlived; these, and newcomers, count in part.
    """

    begin: float
    """Begin and end are times on that clock."""
    end: float
    pauses: Spans
    workers: float
    """The mean number of workers."""
    steps: float
    """Steps of all workers; parts of steps count as parts."""
    examples: float | None
    """None if a step did not count them."""
    no_wait_rate: float | None
    """Examples per second if no worker ever waited and exchanges cost nothing.

    It is the sum over ranks of their examples over the time they were busy (data, delay, compute, update). A rank
    present for a part of the window counts in part.
    """

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return self.end - self.begin

    def holds(self, time: float) -> bool:
        """Return whether this moment, on the clock of the run, is within the window."""
        return self.begin < _training(self.pauses, time) <= self.end

    @property
    def examples_per_second(self) -> float | None:
        """Examples per second; None if examples are not known."""
        return None if self.examples is None else self.examples / self.seconds

    @property
    def no_wait_share(self) -> float | None:
        """The share of the no-wait ideal: 1 if nobody waits and exchanges cost nothing."""
        rate = self.examples_per_second
        return None if rate is None or not self.no_wait_rate else rate / self.no_wait_rate


def window_of(run: RunRecords, warm_up: int) -> Window | None:
    """Return the window from the end of the last worker's warm-up to the first end of a worker; None if it is empty.

    Newcomers do not begin it, and outlived workers do not end it; their work within counts. While any worker
    evaluates nothing counts, neither time nor work. A step that is partly within counts in part, so it does not matter
    that workers end a step some microseconds apart.
    """
    at_work = [rank for rank in run.ranks if rank.steps]
    outlived = {death.rank for death in run.deaths}
    lasting = [rank for rank in at_work if not rank.is_newcomer and rank.rank not in outlived]
    lasting = lasting or [rank for rank in at_work if not rank.is_newcomer]
    if not lasting or any(rank.steps[-1].step <= warm_up for rank in lasting):
        return None
    pauses = run.pauses
    begin = max(_training(pauses, _beginning(rank, warm_up)) for rank in lasting)
    ends = [rank for rank in at_work if not rank.is_newcomer and rank.rank not in outlived] or lasting
    end = min(_training(pauses, rank.steps[-1].end) for rank in ends)
    if end <= begin:
        return None
    totals = [_Total(pauses, begin, end).add(rank.steps) for rank in at_work]
    totals = [total for total in totals if total.steps > 0.0]
    examples = [total.examples for total in totals if total.examples is not None]
    is_counted = len(examples) == len(totals)
    rates = [total.present * (total.examples or 0.0) / total.busy for total in totals if total.busy > 0.0]
    return Window(
        begin=begin,
        end=end,
        pauses=pauses,
        workers=sum(total.present for total in totals),
        steps=sum(total.steps for total in totals),
        examples=sum(examples) if is_counted else None,
        no_wait_rate=sum(rates) if is_counted and len(rates) == len(totals) else None,
    )


def _beginning(rank: RankRecords, warm_up: int) -> float:
    return max((step.end for step in rank.steps if step.step <= warm_up), default=rank.steps[0].begin)


def _training(pauses: Spans, time: float) -> float:
    return time - pauses.before(time)


@dataclass
class _Total:
    """The work of one rank between two moments of training time."""

    pauses: Spans
    begin: float
    end: float
    steps: float = 0.0
    examples: float | None = 0.0
    busy: float = 0.0
    present: float = 0.0
    """The share of the window between its first step and its last one."""

    def add(self, steps: Sequence[Step]) -> _Total:
        first, last = _training(self.pauses, steps[0].begin), _training(self.pauses, steps[-1].end)
        presence = min(last, self.end) - max(first, self.begin)
        self.present = max(0.0, presence) / (self.end - self.begin)
        for step in steps:
            since, until = _training(self.pauses, step.begin), _training(self.pauses, step.end)
            inside = min(until, self.end) - max(since, self.begin)
            if inside <= 0.0 or until <= since:
                continue
            share = inside / (until - since)
            self.steps += share
            self.busy += share * (step.data + step.delay + step.compute + step.update)
            if self.examples is not None:
                self.examples = None if step.examples is None else self.examples + share * step.examples
        return self


def training_seconds(run: RunRecords) -> float | None:
    """Return the seconds from the first begin of a step to the last end, without evaluations; None without steps."""
    if not run.has_steps:
        return None
    begin = min(rank_steps[0].begin for rank_steps in run.steps.values())
    end = max(rank_steps[-1].end for rank_steps in run.steps.values())
    return end - begin - run.pauses.between(begin, end)


def examples_of(run: RunRecords) -> int | None:
    """Return the examples of all workers and steps, with the warm-up; None without steps or counts."""
    counts = [step.examples for rank in run.ranks for step in rank.steps]
    examples = [count for count in counts if count is not None]
    return sum(examples) if counts and len(examples) == len(counts) else None


def bytes_per_step(run: RunRecords, warm_up: int) -> float | None:
    """Return the mean bytes sent by one rank in one step, over all optimizers; None without steps."""
    steps = [step for rank in run.ranks for step in rank.steps if step.step > warm_up]
    others = [step for rank in run.ranks for step in rank.others if step.step > warm_up]
    return sum(step.bytes_out for step in (*steps, *others)) / len(steps) if steps else None


def peak_bytes(run: RunRecords) -> int | None:
    """Return the resident memory of the rank that took most; None if no rank recorded it."""
    amounts = (rank.end.get("peak_bytes") for rank in run.ranks if rank.end is not None)
    return max((amount for amount in amounts if isinstance(amount, int)), default=None)


def batch_of(run: RunRecords) -> int | None:
    """Return the examples of the greatest step of one worker; None if they were not counted."""
    counts = [step.examples for rank in run.ranks for step in rank.steps if step.examples is not None]
    return max(counts, default=None)


@dataclass(frozen=True)
class Amounts:
    """Running totals of all workers by time, on the clock of the run."""

    times: Sequence[float]
    examples: Sequence[int] | None
    """With a 0 before the first; None if a step did not count them."""
    bytes: Sequence[int]
    """With a 0 before the first."""
    byte_times: Sequence[float]

    @classmethod
    def of(cls, run: RunRecords) -> Amounts:
        steps = sorted((step for rank in run.ranks for step in rank.steps), key=lambda step: step.end)
        all_steps = sorted((s for rank in run.ranks for s in (*rank.steps, *rank.others)), key=lambda step: step.end)
        counts = [step.examples for step in steps]
        examples = [count for count in counts if count is not None]
        return cls(
            [step.end for step in steps],
            list(accumulate(examples, initial=0)) if len(examples) == len(counts) else None,
            list(accumulate((step.bytes_out for step in all_steps), initial=0)),
            [step.end for step in all_steps],
        )

    def examples_at(self, time: float) -> int | None:
        """Return the examples in steps that had ended by `time`."""
        return None if self.examples is None else self.examples[bisect_right(self.times, time)]

    def bytes_at(self, time: float) -> int:
        """Return the bytes that all workers had sent by `time`."""
        return self.bytes[bisect_right(self.byte_times, time)]
