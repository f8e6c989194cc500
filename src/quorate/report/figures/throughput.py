"""How much was trained per second and sent per step, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.records.rows import Step
from quorate.report.reading.rank import RankRecords
from quorate.report.reading.run import RunRecords
from quorate.report.reading.spans import Spans


@dataclass(frozen=True)
class Window:
    """A stretch of a run in which workers were at work, on a clock that stands still during evaluations.

    All that there were at the start, but for those that died and were outlived; these, and those that joined, for a
    part of it."""

    begin: float
    """On that clock, likewise the end."""
    end: float
    pauses: Spans
    workers: float
    """That were there, in the mean."""
    steps: float
    """Of all workers; parts of steps count as parts."""
    examples: float | None
    """None where a step did not count them."""
    no_wait_rate: float | None
    """Examples per second if nobody ever waited and exchanges cost nothing: the sum over ranks of their examples over
    the time they were busy (data, delay, compute, update); of one that was there for a part of it, that part."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin

    def holds(self, time: float) -> bool:
        """Whether this moment, on the clock of the run, is within."""
        return self.begin < _training(self.pauses, time) <= self.end

    @property
    def examples_per_second(self) -> float | None:
        """None where examples are not known."""
        return None if self.examples is None else self.examples / self.seconds

    @property
    def no_wait_share(self) -> float | None:
        """Of the no-wait ideal: 1 where nobody waits and exchanges cost nothing."""
        rate = self.examples_per_second
        return None if rate is None or not self.no_wait_rate else rate / self.no_wait_rate


def window_of(run: RunRecords, warm_up: int) -> Window | None:
    """From the moment the last worker has warmed up to the moment the first one ends; None where that is nothing.

    Workers that joined begin it not, those that were outlived end it not; what they did within counts. While any worker
    evaluates nothing counts, neither time nor work. A step that is partly within counts in part, so it does not matter
    that workers end a step some microseconds apart.
    """
    at_work = [one for one in run.ranks if one.steps]
    outlived = {death.rank for death in run.deaths}
    there = [one for one in at_work if not one.is_newcomer and one.rank not in outlived]
    there = there or [one for one in at_work if not one.is_newcomer]
    if not there or any(one.steps[-1].step <= warm_up for one in there):
        return None
    pauses = run.pauses
    begin = max(_training(pauses, _beginning(one, warm_up)) for one in there)
    ends = [one for one in at_work if not one.is_newcomer and one.rank not in outlived] or there
    end = min(_training(pauses, one.steps[-1].end) for one in ends)
    if end <= begin:
        return None
    totals = [_Total(pauses, begin, end).add(one.steps) for one in at_work]
    totals = [one for one in totals if one.steps > 0.0]
    examples = [one.examples for one in totals if one.examples is not None]
    is_counted = len(examples) == len(totals)
    rates = [one.present * (one.examples or 0.0) / one.busy for one in totals if one.busy > 0.0]
    return Window(
        begin=begin,
        end=end,
        pauses=pauses,
        workers=sum(one.present for one in totals),
        steps=sum(one.steps for one in totals),
        examples=sum(examples) if is_counted else None,
        no_wait_rate=sum(rates) if is_counted and len(rates) == len(totals) else None,
    )


def _beginning(one: RankRecords, warm_up: int) -> float:
    """When this rank had warmed up: at the end of its last step of the warm-up."""
    return max((step.end for step in one.steps if step.step <= warm_up), default=one.steps[0].begin)


def _training(pauses: Spans, time: float) -> float:
    """What a clock shows at `time` that stands still during `pauses`."""
    return time - pauses.before(time)


@dataclass
class _Total:
    """What one rank did between two moments of training time."""

    pauses: Spans
    begin: float
    end: float
    steps: float = 0.0
    examples: float | None = 0.0
    busy: float = 0.0
    present: float = 0.0
    """From its first step to its last one, as a share of the time between the two moments."""

    def add(self, steps: Sequence[Step]) -> _Total:
        first, last = _training(self.pauses, steps[0].begin), _training(self.pauses, steps[-1].end)
        there = min(last, self.end) - max(first, self.begin)
        self.present = max(0.0, there) / (self.end - self.begin)
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
    """From the first step's beginning to the last one's end, evaluations left out; None without steps."""
    if not run.has_steps:
        return None
    begin = min(own[0].begin for own in run.steps.values())
    end = max(own[-1].end for own in run.steps.values())
    return end - begin - run.pauses.between(begin, end)


def examples_of(run: RunRecords) -> int | None:
    """Of all workers and steps, the warm-up included; None where a step did not count them, and without steps."""
    counts = [step.examples for one in run.ranks for step in one.steps]
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def bytes_per_step(run: RunRecords, warm_up: int) -> float | None:
    """Sent by one rank in one step, on average; what several optimizers send adds up. None without steps."""
    steps = [step for one in run.ranks for step in one.steps if step.step > warm_up]
    others = [step for one in run.ranks for step in one.others if step.step > warm_up]
    return sum(step.bytes_out for step in (*steps, *others)) / len(steps) if steps else None


def peak_bytes(run: RunRecords) -> int | None:
    """Resident memory of the rank that took most; None where no rank said."""
    said = (one.end.get("peak_bytes") for one in run.ranks if one.end is not None)
    return max((amount for amount in said if isinstance(amount, int)), default=None)


def batch_of(run: RunRecords) -> int | None:
    """Examples of the greatest step of one worker; None where they were not counted."""
    counts = [step.examples for one in run.ranks for step in one.steps if step.examples is not None]
    return max(counts, default=None)
