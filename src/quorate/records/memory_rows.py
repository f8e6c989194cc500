"""The row of the memory that a worker uses."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory(Row):
    """The memory that a worker uses, in bytes; unknown figures are left out of the row."""

    kind = "memory"
    time: float
    step: int
    """The step of the first optimizer; 0 before it is distributed."""
    resident: int | None = None
    live: int | None = None
    """Memory in use: allocated by the C library and not freed, and resident shared memory."""
    peak_live: int | None = None
    """The greatest value of `live` that was measured so far."""
    gpu: int | None = None
    """Memory of the GPU that torch has allocated."""
    peak_gpu: int | None = None
    to_host: int | None = None
    """Bytes copied to the host since the beginning, where the optimizer is offloaded; `to_device` likewise."""
    to_device: int | None = None
