"""The row of a run's records that says what memory a worker takes."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory(Row):
    """What memory a worker takes, in bytes; what is not known is left out."""

    kind = "memory"
    time: float
    step: int
    """Of the first optimizer; 0 before it is distributed."""
    resident: int | None = None
    live: int | None = None
    """In use: what was asked of the C library and not given back, and shared memory that is resident."""
    peak_live: int | None = None
    """The greatest that was seen until then."""
    gpu: int | None = None
    """Allocated on it by torch."""
    peak_gpu: int | None = None
    to_host: int | None = None
    """What has been copied there since the beginning, where the optimizer is offloaded; so `to_device`."""
    to_device: int | None = None
