"""What it would have cost to wait for everybody: an estimate for runs in which nobody did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quorate.records.rows import Step


def side_by_side(steps: Mapping[int, Sequence[Step]]) -> dict[int, dict[int, Step]]:
    """The first step of every rank, the second, and so on, by number and rank: as many as all have, at least two ranks.

    They were not taken at the same time. But had everybody waited for everybody, they would have met.
    """
    if len(steps) < 2:
        return {}
    ranks = {rank: {step.step: step for step in own} for rank, own in steps.items()}
    common = set.intersection(*(set(own) for own in ranks.values()))
    return {number: {rank: own[number] for rank, own in ranks.items()} for number in sorted(common)}


def in_order(steps: Mapping[int, Sequence[Step]]) -> dict[int, dict[int, Step]]:
    """The same by place: the first that is known of every rank, the second, and so on."""
    if len(steps) < 2:
        return {}
    together = zip(*steps.values(), strict=False)
    return {place: dict(zip(steps, there, strict=True)) for place, there in enumerate(together)}


def busy(step: Step) -> float:
    """Seconds that the worker was at work on it by itself."""
    return step.arrive - step.begin


def waiting_in_step(steps: Mapping[int, Sequence[Step]]) -> float | None:
    """The share of the time that would have been waiting for others, had all begun each step together.

    Of the steps of equal number the longest work counts: what the others' took less they would have waited. Added to it
    is what each did after it arrived, other than `wait`. Exchanges are taken to cost nothing, and workers to be as fast
    as they were, although those that wait leave a shared machine to the others. None for one worker.
    """
    waited = total = 0.0
    for there in side_by_side(steps).values():
        longest = max(busy(step) for step in there.values())
        for step in there.values():
            waited += longest - busy(step)
            total += longest + max(0.0, step.end - step.arrive - step.wait)
    return waited / total if total > 0.0 else None
