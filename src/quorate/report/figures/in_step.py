"""The cost of waiting for everybody: an estimate for runs in which nobody did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quorate.records.rows import Step


def side_by_side(steps: Mapping[int, Sequence[Step]]) -> dict[int, dict[int, Step]]:
    """Return the first step of every rank, the second, and so on, by number and rank: as many as all ranks have.

    The ranks, two at least, did not take them at the same time, but would have met had everybody waited for everybody.
    """
    if len(steps) < 2:
        return {}
    ranks = {rank: {step.step: step for step in rank_steps} for rank, rank_steps in steps.items()}
    common = set.intersection(*(set(numbers) for numbers in ranks.values()))
    return {number: {rank: rank_steps[number] for rank, rank_steps in ranks.items()} for number in sorted(common)}


def in_order(steps: Mapping[int, Sequence[Step]]) -> dict[int, dict[int, Step]]:
    """Return the steps by place: the first known one of every rank, the second, and so on."""
    if len(steps) < 2:
        return {}
    together = zip(*steps.values(), strict=False)
    return {place: dict(zip(steps, meeting, strict=True)) for place, meeting in enumerate(together)}


def busy(step: Step) -> float:
    """Return the seconds that the worker was at work on the step by itself."""
    return step.arrive - step.begin


def waiting_in_step(steps: Mapping[int, Sequence[Step]]) -> float | None:
    """Return the share of the time that would have been waiting for others, had all begun each step together.

    Of the steps of equal number the longest work counts: workers would have waited for the rest of it. Added to it
    is the time of each worker after its arrival, other than `wait`. Exchanges are taken to cost nothing, and workers to
    be as fast as they were, although those that wait leave a shared machine to the others. None for one worker.
    """
    waited = total = 0.0
    for meeting in side_by_side(steps).values():
        longest = max(busy(step) for step in meeting.values())
        for step in meeting.values():
            waited += longest - busy(step)
            total += longest + max(0.0, step.end - step.arrive - step.wait)
    return waited / total if total > 0.0 else None
