"""The uses of the time of steps.

A worker cannot distinguish the parts of its `wait`; the arrivals of others split it. Until the last arrival that it
waited for it waited for others, and after that for bytes to move. Where everybody waits for everybody, these are the
arrivals of all that met; under a quorum, of the gradients in the round. The waiting of a stage of a pipeline for other
stages is waiting for others. Of injected delays, the pace stands for compute, and the remainder is delay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quorate.records.rows import Step
from quorate.report.figures.lateness import Meetings

ACTIVITIES = ("data", "compute", "pace", "delay", "encode", "waiting", "communication", "decode", "update", "other")
"""Activities in the order in which reports show them."""


@dataclass(frozen=True, slots=True)
class Spent:
    """One step and its seconds by activity, in the order of `ACTIVITIES`; they add up to `seconds`."""

    rank: int
    step: Step
    by: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The length of the step."""
        return self.step.end - self.step.begin


def spent_in(meetings: Meetings, last: Mapping[int, float] | None = None) -> list[Spent]:
    """Return every step with the uses of its time. Time outside of all parts is "other", never below 0.

    `last` has, under a quorum, the arrival of the last gradient of a round, by update. For an update that is not in it,
    nobody is known to have been waited for.
    """
    times = []
    for (update, _), meeting in meetings.steps.items():
        latest = max(step.arrive for step in meeting.values()) if last is None else last.get(update, -math.inf)
        for rank, step in meeting.items():
            bubble = min(step.wait, step.bubble or 0.0)  # of a pipeline, before it came
            waiting = bubble + max(0.0, min(step.wait - bubble, latest - step.arrive))
            moving = max(0.0, step.wait - waiting)
            pace = min(step.delay, step.pace or 0.0)
            parts = (
                step.data, step.compute, pace, step.delay - pace, step.encode, waiting, moving, step.decode,
                step.update,
            )  # fmt: skip
            times.append(Spent(rank, step, _fitted(parts, step.end - step.begin)))
    return times


def _fitted(parts: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """Return the parts and the time outside of them; scaled down if clocks or rounding make them more than the step."""
    total = sum(parts)
    if total <= seconds or total <= 0.0:
        return (*parts, max(0.0, seconds - total))
    return (*(part * max(0.0, seconds) / total for part in parts), 0.0)


def share_of(activity: str, spent: Iterable[Spent]) -> float | None:
    """Return the share of the time of these steps that an activity took; None without steps."""
    place = ACTIVITIES.index(activity)
    seconds = total = 0.0
    for times in spent:
        seconds += times.by[place]
        total += times.seconds
    return seconds / total if total > 0.0 else None


def bubble_share(steps: Iterable[Step]) -> float | None:
    """Return the share of these steps of one worker in which it waited for other stages; None if it has none."""
    bubbles = [(step, step.bubble) for step in steps if step.bubble is not None]
    seconds = sum(step.end - step.begin for step, _ in bubbles)
    return min(1.0, sum(bubble for _, bubble in bubbles) / seconds) if seconds > 0.0 else None
