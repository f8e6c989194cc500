"""Rows about the memory and the load of a worker's host."""

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
    """Bytes copied to the host since the beginning, if the optimizer is offloaded."""
    to_device: int | None = None
    """Bytes copied to the device since the beginning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load(Row):
    """The load of the host while this worker was in the run; unknown figures are left out of the row."""

    kind = "load"
    time: float
    seconds: float
    """Seconds since the worker joined; all other figures are of this period."""
    cpu_seconds: float
    """CPU seconds of this worker, and of its children that have ended."""
    cores: int
    """Number of cores of the host."""
    busy_seconds: float | None = None
    """CPU seconds of all processes of the host, and of other guests of its machine."""
    load_average: float | None = None
    """Mean number of processes that ran or waited for a core in the last minute."""
    pressure: float | None = None
    """Share of the time in which some process waited for a core."""
