"""Workers that died while the others went on: who, when, and how long the others stood still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from quorate.core.records import Step
from quorate.report.reading.sound import has_numbers, is_text


@dataclass(frozen=True)
class Death:
    """One of them, as the first rank that was left told it."""

    rank: int
    host: str
    reason: str
    """As a sentence goes on after the rank: `was killed by signal 9 (SIGKILL)`."""
    time: float
    """On the run's clock, when the others had noticed."""
    round: int
    """The newest update then."""
    left: int
    """Workers that went on."""


def death_of(row: Mapping[str, Any]) -> Death | None:
    """What a `gone` row says; None where something is missing."""
    is_whole = has_numbers(row, "rank", "time", "round", "left")
    if not is_whole or not all(is_text(row.get(name)) for name in ("host", "reason")):
        return None
    return Death(row["rank"], row["host"], row["reason"], row["time"], row["round"], row["left"])


def standstill(death: Death, steps: Mapping[int, Sequence[Step]]) -> float | None:
    """The longest time between the ends of two steps that lies around the noticing, of those that went on; seconds.

    None where nobody stepped on both sides of it.
    """
    longest = [
        late.end - early.end
        for rank, some in steps.items()
        if rank != death.rank
        for early, late in pairwise(some)
        if early.end <= death.time + 1.0 and late.end >= death.time - 1.0
    ]
    return max(longest, default=None)
