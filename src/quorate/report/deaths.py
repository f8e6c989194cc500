"""Workers that died while the others went on: who, when, and how long the others stood still."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from quorate.core.records import Step
from quorate.report.sound import has_numbers, is_text

if TYPE_CHECKING:
    from quorate.report.joinings import Joining

T = TypeVar("T", "Death", "Joining")


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


def each_once(found: Iterable[Sequence[T]]) -> list[T]:
    """Of all ranks' rows, each once, in order: two ranks may have told of one where the first died as well."""
    known: dict[int, T] = {}
    for event in (event for one in found for event in one):
        there = known.get(event.rank)
        known[event.rank] = event if there is None or event.time < there.time else there
    return sorted(known.values(), key=lambda event: event.time)


def moved(events: Sequence[T], seconds: float) -> list[T]:
    """The same on another clock."""
    return [replace(event, time=event.time + seconds) for event in events]


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
