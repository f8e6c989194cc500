"""The row of the work of a parameter server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Served(Row):
    """The work of a server since its row before, or since the beginning of the era; written by the server's worker."""

    kind = "served"
    time: float
    optimizer: str
    seconds: float
    """Duration of this period."""
    busy: float
    """Seconds of the period in which the server handled messages."""
    bytes_in: int
    """Bytes from other workers; pushes and reads of its own worker cross no link, and do not count."""
    bytes_out: int
    steps: int
    """Number of steps that it has made."""
    taken: Sequence[Sequence[int]] | None = None
    """Gradients in steps: pairs of staleness in steps and number. Only a server that decides on the order writes it."""
    counted: Sequence[float] | None = None
    """Total weight of the gradients of each pair, where an equal share of a step of all workers is 1."""
    dropped: Sequence[Sequence[int]] | None = None
    """Gradients that were dropped: pairs of staleness and number."""
    given: Sequence[Sequence[int]] | None = None
    """Triples of rank, number of its gradients in steps, and number of its gradients that were dropped."""
