"""A round that is being formed, and what workers give to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorate.core.vectors import Flat


@dataclass
class Contribution:
    """What one worker gave to the round that is being formed."""

    weight: float
    step: int
    options: Any
    stalenesses: list[tuple[int, int]]
    vector: Flat | None
    measures: list[Any] = field(default_factory=list)
    """With each contribution, in order."""


def given_from(header: dict[str, Any], vector: Flat | None) -> Contribution:
    """What `Snapshot.header` said, perhaps among other things."""
    stalenesses = [(staleness, count) for staleness, count in header["stalenesses"]]
    return Contribution(header["weight"], header["step"], header["options"], stalenesses, vector, header["measures"])


@dataclass
class OpenRound:
    """A round that is being formed."""

    number: int
    since: float
    settles: bool
    until: dict[int, float]
    """By rank that is waited for, how long."""
    given: dict[int, Contribution] = field(default_factory=dict)
    is_extended: bool = False


def sum_of(vectors: Sequence[Flat], blank: Callable[[], Flat] | None) -> Flat | None:
    """In order; formed in what `blank` gives (None: ordinary memory). One vector is its own sum; None where none is."""
    if len(vectors) < 2:
        return vectors[0] if vectors else None
    first, second, *rest = vectors
    total = first + second if blank is None else first.plus(second, blank())
    for one in rest:
        total.add_(one)
    return total
