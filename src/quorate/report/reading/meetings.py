"""Steps of different ranks that met: after which their replicas had applied the same number of updates.

Where everybody waits for everybody these are the steps of equal number. Elsewhere, a slow rank is missing in many
meetings, and the present ranks have not waited for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quorate.records.rows import Step

Key = tuple[int, int]
"""The round, and the number of a rank's step within that round."""

MOST = 0.8
"""Everybody waits for everybody if at least this share of the meetings has all ranks in it."""


@dataclass(frozen=True)
class Meetings:
    """All meetings of a run in order, each with the steps of its ranks."""

    steps: dict[Key, dict[int, Step]]
    ranks: tuple[int, ...]
    """The ranks that took any of the steps."""
    complete: tuple[Key, ...]
    """Meetings of two ranks or more without a missing rank, counting those that trained at the time."""
    is_together: bool
    """Whether everybody waits for everybody; False for a single rank."""


def meetings_of(steps: Mapping[int, Sequence[Step]], *, is_together: bool | None = None) -> Meetings:
    """Match the steps of all ranks; a step of one rank alone is a meeting of one.

    Everybody waits for everybody if enough meetings are complete, unless `is_together` says so.
    """
    meetings: dict[Key, dict[int, Step]] = {}
    for rank, rank_steps in steps.items():
        for key, step in zip(keys_of(rank_steps), rank_steps, strict=True):
            meetings.setdefault(key, {})[rank] = step
    lives = {rank: (rank_steps[0].round, rank_steps[-1].round) for rank, rank_steps in steps.items() if rank_steps}
    in_order = dict(sorted(meetings.items()))
    complete = [
        key
        for key, meeting in in_order.items()
        if len(meeting) > 1 and len(meeting) == sum(first <= key[0] <= last for first, last in lives.values())
    ]
    if is_together is None:
        is_together = len(complete) >= MOST * len(in_order)
    return Meetings(in_order, tuple(lives), tuple(complete), is_together and bool(complete))


def keys_of(steps: Sequence[Step]) -> list[Key]:
    """Return the meeting of each step of one rank, in order."""
    keys: list[Key] = []
    for step in steps:
        again = bool(keys) and keys[-1][0] == step.round
        keys.append((step.round, keys[-1][1] + 1 if again else 0))
    return keys


def lateness_of(meeting: Mapping[int, Step]) -> dict[int, float]:
    """Return the seconds that each rank arrived after the first of one meeting."""
    first = min(step.arrive for step in meeting.values())
    return {rank: step.arrive - first for rank, step in meeting.items()}
