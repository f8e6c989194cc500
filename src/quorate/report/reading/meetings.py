"""Steps of different ranks that met: those after which their replicas had applied the same number of updates.

Where everybody waits for everybody these are the steps of equal number. Where not, a slow rank is missing in many
meetings, and those that are there have not waited for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quorate.records.rows import Step

Key = tuple[int, int]
"""The round, and which of a rank's steps within that round."""

MOST = 0.8
"""Everybody waits for everybody where this share of the meetings, or more, has all ranks in it."""


@dataclass(frozen=True)
class Meetings:
    """All meetings of a run in order, each with the step of every rank that was there."""

    steps: dict[Key, dict[int, Step]]
    ranks: tuple[int, ...]
    """Those that took any of the steps."""
    complete: tuple[Key, ...]
    """Meetings of two ranks or more in which nobody was missing who was still, or already, there."""
    is_together: bool
    """Whether everybody waits for everybody; False for one rank alone."""


def meetings_of(steps: Mapping[int, Sequence[Step]], *, is_together: bool | None = None) -> Meetings:
    """Match the steps of all ranks; what one rank did alone is a meeting of one.

    Whether everybody waits for everybody is seen from how many meetings are complete, unless it is told.
    """
    found: dict[Key, dict[int, Step]] = {}
    for rank, own in steps.items():
        for key, step in zip(keys_of(own), own, strict=True):
            found.setdefault(key, {})[rank] = step
    lives = {rank: (own[0].round, own[-1].round) for rank, own in steps.items() if own}
    in_order = dict(sorted(found.items()))
    complete = [
        key
        for key, there in in_order.items()
        if len(there) > 1 and len(there) == sum(first <= key[0] <= last for first, last in lives.values())
    ]
    if is_together is None:
        is_together = len(complete) >= MOST * len(in_order)
    return Meetings(in_order, tuple(lives), tuple(complete), is_together and bool(complete))


def keys_of(steps: Sequence[Step]) -> list[Key]:
    """With which meeting each step of one rank, in order, goes."""
    keys: list[Key] = []
    for step in steps:
        again = bool(keys) and keys[-1][0] == step.round
        keys.append((step.round, keys[-1][1] + 1 if again else 0))
    return keys


def lateness_of(there: Mapping[int, Step]) -> dict[int, float]:
    """Seconds that each rank arrived after the first of one meeting."""
    first = min(step.arrive for step in there.values())
    return {rank: step.arrive - first for rank, step in there.items()}
