"""Rows of what servers of parameters do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Served(Row):
    """What a server has done since its row before, or since all set out; written by the server's worker."""

    kind = "served"
    time: float
    optimizer: str
    seconds: float
    """How long that is."""
    busy: float
    """Seconds of these in which it handled messages."""
    bytes_in: int
    """From other workers; what its own worker pushes and reads goes through no link."""
    bytes_out: int
    steps: int
    """That it has made."""
    taken: Sequence[Sequence[int]] | None = None
    """By a server that decides on the order: gradients in steps, as pairs of their staleness in steps and how many."""
    counted: Sequence[float] | None = None
    """Likewise what those of each pair counted together, where an equal share of a step of all workers is 1."""
    dropped: Sequence[Sequence[int]] | None = None
    """Likewise gradients that were dropped: as pairs."""
    given: Sequence[Sequence[int]] | None = None
    """Likewise by worker: triples of rank, gradients in steps, and gradients dropped."""
