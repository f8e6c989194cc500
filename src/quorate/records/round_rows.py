"""The rows of a run's records that tell of rounds; the others are in `records.rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRow(Row):
    """A round was applied; written by the first rank that is left, under strategies with rounds."""

    kind = "round"
    number: int
    time: float
    weight: float
    live: int
    """Workers counted."""
    contributors: Mapping[str, Sequence[Sequence[int]]]
    """By rank, pairs of staleness and number of gradients."""
    settings: Mapping[str, Any] | None = None
    """What is in force from the next round on, where it has changed."""
    why: str | None = None
    """It has changed, in words."""
    optimizer: str | None = None
    """The name of its channel."""
    quorum: int | None = None
    """How many workers had to call for it."""
    times: Mapping[str, int] | None = None
    """By rank that was asked, how often it had handed in by then."""
    told: Mapping[str, Sequence[Any]] | None = None
    """By rank, what went with what it gave, where anything did: of learners their weights, by fragment."""
    alive: int | None = None
    """Workers counted, and those that have ended."""
    progress: float | None = None
    """Synchronous steps that the training has made by then."""
    window: float | None = None
    """Seconds that were waited for more workers than had to call, where rounds have a window."""
    hosts: Sequence[Sequence[int]] | None = None
    """Where the sum was formed host by host: the contributors of each, in the order in which they were added."""
    settles: bool | None = None
    """Nobody stepped: all that was pending is in it."""
    is_last: bool | None = None
    """And every worker had ended."""
    digest: str | None = None
    """Of the bits of what the round has formed (of large vectors, of a sample); None where nothing was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied(Row):
    """This worker has looked which rounds are there, and applied some, under strategies with rounds."""

    kind = "applied"
    optimizer: str
    rests: int
    """How often all had settled before."""
    look: int
    """How often it has looked since then."""
    round: int
    """The newest that it has applied."""
    is_copy: bool | None = None
    """It has not applied the last ones: its replica is a copy of another one."""
    source: int | None = None
    """Of a copy: whose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gave(Row):
    """This worker has given a copy of its replica to one that joins."""

    kind = "gave"
    optimizer: str
    to: int
    rests: int
    """As of `Applied`."""
    look: int
    round: int
    """The newest that it had applied."""
    times: int
    """How often it had handed in."""
