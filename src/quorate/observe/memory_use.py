"""What memory this process takes, and rows that say so while it trains."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import dataclass, field

import torch

from quorate.records.memory_rows import Memory
from quorate.records.records import Recorder
from quorate.sharding.boundary import Boundary
from quorate.wire.current import Place

ROW_EVERY, LOOK_EVERY = 5.0, 0.05
"""Seconds between two rows, and between two looks, at least."""


_NAMES = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES]


def _mallinfo2() -> ctypes._NamedFuncPointer | None:
    """That of the C library; None where it is not glibc, or one before 2.33."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        found = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        return None
    found.restype = _Mallinfo2
    return found


_INFO = _mallinfo2()


@dataclass(frozen=True)
class InUse:
    """Bytes; None where the system does not say."""

    resident: int | None
    """In memory of what the process has, programs included."""
    allocated: int | None
    """Asked of the C library, and not given back."""
    shared: int | None
    """Shared memory that is resident; what other workers share counts with this one too, where it has looked at it."""

    @property
    def live(self) -> int | None:
        """What is in use."""
        return None if self.allocated is None or self.shared is None else self.allocated + self.shared


def in_use() -> InUse:
    """Of this process, now. Cost: some 30 µs."""
    told = _status()
    if told is None:
        return InUse(None, None, None)
    resident, shared = told
    if _INFO is None:
        return InUse(resident, None, shared)
    info = _INFO()
    return InUse(resident, info.hblkhd + info.uordblks, shared)


def _status() -> tuple[int, int] | None:
    """What is resident, and of that shared memory; None where there is no /proc."""
    try:
        with open("/proc/self/status", "rb") as file:
            text = file.read()
    except OSError:
        return None
    return _kilobytes(text, b"VmRSS:"), _kilobytes(text, b"RssShmem:")


def _kilobytes(text: bytes, name: bytes) -> int:
    begin = text.find(name)
    return 0 if begin < 0 else 1024 * int(text[begin + len(name) : text.find(b"kB", begin)])


@dataclass
class MemoryUse:
    """Of each worker: looks at the end of forward passes and of steps, and writes rows, where it was told to."""

    recorder: Recorder | None = None
    is_on_gpu: bool = False
    peak: int | None = None
    """Greatest live bytes that were seen."""
    boundaries: list[Boundary] = field(default_factory=list)
    """Of what is offloaded."""
    told: set[int] = field(default_factory=set)
    """Tensors that are in what was foreseen of some optimizer."""
    look_at: float = math.inf
    """When the next look is due, in seconds of the clock; inf where no rows are written."""
    _row_at: float = 0.0

    def begin(self, recorder: Recorder, now: float, *, is_on_gpu: bool) -> None:
        """Write rows from now on, the first one now: what there is before there is a model."""
        self.recorder, self.is_on_gpu, self.look_at = recorder, is_on_gpu, now
        self.write(now, 0)

    def look(self, now: float) -> None:
        """Keep what is in use, if it is more than ever."""
        if now >= self.look_at:
            self.look_at = now + LOOK_EVERY
            self._see()

    def stepped(self, now: float, step: int) -> None:
        """A step has ended: a row, if it is time."""
        if self.recorder is not None:
            self.look(now)
            if now >= self._row_at:
                self.write(now, step)

    def write(self, now: float, step: int) -> None:
        """A row, with what comes after it. Nothing where no rows are kept."""
        if self.recorder is None:
            return
        self._row_at = now + ROW_EVERY
        found, on_gpu = self._see(), None
        if self.is_on_gpu:
            on_gpu = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        self.recorder.hold(
            Memory(
                time=now,
                step=step,
                resident=found.resident,
                live=found.live,
                peak_live=self.peak,
                gpu=on_gpu and on_gpu[0],
                peak_gpu=on_gpu and on_gpu[1],
                to_host=sum(one.to_host_bytes for one in self.boundaries) if self.boundaries else None,
                to_device=sum(one.to_device_bytes for one in self.boundaries) if self.boundaries else None,
            )
        )

    def _see(self) -> InUse:
        found = in_use()
        if found.live is not None:
            self.peak = max(found.live, self.peak or 0)
        return found


def memory_use(place: Place) -> MemoryUse:
    """That of the worker."""
    return place.context(MemoryUse)
