"""The rows of rounds; the other rows of a run are in `records.rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRow(Row):
    """A round that was applied; the lowest living rank writes it, under strategies with rounds."""

    kind = "round"
    number: int
    time: float
    weight: float
    live: int
    """Number of workers that are counted as training."""
    contributors: Mapping[str, Sequence[Sequence[int]]]
    """By rank: pairs of staleness and number of gradients."""
    settings: Mapping[str, Any] | None = None
    """The settings that are in force from the next round on, where they have changed."""
    why: str | None = None
    """Reason for the change, in words."""
    optimizer: str | None = None
    """Name of its channel."""
    quorum: int | None = None
    """Number of workers that had to call for the round."""
    times: Mapping[str, int] | None = None
    """By rank that was asked: number of its contributions by then."""
    told: Mapping[str, Sequence[Any]] | None = None
    """By rank: payloads of its contributions, where there are any. Those of learners have weights by fragment."""
    alive: int | None = None
    """Number of living workers: those in `live`, and those that have ended."""
    progress: float | None = None
    """Number of synchronous steps that the training has made by then."""
    window: float | None = None
    """Seconds of waiting for more workers than had to call, where rounds have a window."""
    hosts: Sequence[Sequence[int]] | None = None
    """Contributors of each host in the order of their sum, where the sum was formed host by host."""
    settles: bool | None = None
    """Whether the round is that of a pause: it includes everything that was pending."""
    is_last: bool | None = None
    """Whether every worker had ended as well."""
    digest: str | None = None
    """Digest of the bits of the result (for large vectors, of a sample); None where there is no result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied(Row):
    """A look of this worker for complete rounds in which it applied some, under strategies with rounds."""

    kind = "applied"
    optimizer: str
    rests: int
    """Number of pauses before."""
    look: int
    """Number of looks of this worker since the last pause."""
    round: int
    """Number of the newest round that it has applied."""
    is_copy: bool | None = None
    """Whether its replica became a copy of another one, in place of applying the last rounds."""
    source: int | None = None
    """Rank of the worker whose replica was copied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gave(Row):
    """A copy of its replica that this worker has sent to a newcomer."""

    kind = "gave"
    optimizer: str
    to: int
    rests: int
    """Number of pauses before; `look` counts as in `Applied`."""
    look: int
    round: int
    """Number of the newest round that it had applied."""
    times: int
    """Number of its contributions by then."""
