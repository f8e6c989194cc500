"""The memory of this process, and rows about it during the training."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from dataclasses import dataclass, field

import torch

from quorate.records.host_rows import Memory
from quorate.records.records import Recorder
from quorate.sharding.boundary import Boundary

ROW_EVERY, LOOK_EVERY, LOOK_SHARE = 5.0, 0.05, 0.002
"""The least seconds between two rows, and between two readings; the greatest share of the time that readings take."""


_NAMES = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES]


def _mallinfo2() -> ctypes._NamedFuncPointer | None:
    """Return `mallinfo2` of the C library; None if it is not glibc, or one before 2.33."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _Mallinfo2
    return function


_INFO = _mallinfo2()


@dataclass(frozen=True)
class InUse:
    """Bytes in use; None where the system does not report them."""

    resident: int | None
    """Resident memory of the process, programs included."""
    allocated: int | None
    """Memory of the C library that was allocated and not freed."""
    shared: int | None
    """Resident shared memory; shared memory of other workers counts once this process has read it."""

    @property
    def live(self) -> int | None:
        """Allocated and shared memory."""
        return None if self.allocated is None or self.shared is None else self.allocated + self.shared


def in_use() -> InUse:
    """Return the memory of this process.

    Cost: some 30 µs; 30 ms where the memory of the C library is in many pieces, as beside JAX, since it counts them.
    """
    status = _status()
    if status is None:
        return InUse(None, None, None)
    resident, shared = status
    if _INFO is None:
        return InUse(resident, None, shared)
    info = _INFO()
    return InUse(resident, info.hblkhd + info.uordblks, shared)


def _status() -> tuple[int, int] | None:
    """Return resident memory and resident shared memory; None without /proc."""
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
    """The memory of one worker: read at the end of forward passes and of steps, and written as rows after `begin`."""

    recorder: Recorder | None = None
    is_on_gpu: bool = False
    peak: int | None = None
    """The most live bytes that were read."""
    boundaries: list[Boundary] = field(default_factory=list)
    """The boundaries of offloaded tensors."""
    foreseen: set[int] = field(default_factory=set)
    """Ids of the tensors in the forecast of some optimizer."""
    look_at: float = math.inf
    """The time of the next reading, in seconds of the clock; inf where no rows are written."""
    _row_at: float = 0.0
    _look_every: float = LOOK_EVERY

    def begin(self, recorder: Recorder, now: float, *, is_on_gpu: bool) -> None:
        """Write rows from now on, the first one now: the memory before there is a model."""
        self.recorder, self.is_on_gpu, self.look_at = recorder, is_on_gpu, now
        self.write(now, 0)

    def look(self, now: float) -> None:
        """Read the memory in use, and keep the peak."""
        if now >= self.look_at:
            self._see()
            self.look_at = now + self._look_every

    def stepped(self, now: float, step: int) -> None:
        """Write a row at the end of a step, if it is time."""
        if self.recorder is not None:
            self.look(now)
            if now >= self._row_at:
                self.write(now, step)

    def write(self, now: float, step: int) -> None:
        """Write a row together with the next one, if rows are kept."""
        if self.recorder is None:
            return
        self._row_at = now + ROW_EVERY
        use, on_gpu = self._see(), None
        if self.is_on_gpu:
            on_gpu = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        self.recorder.hold(
            Memory(
                time=now,
                step=step,
                resident=use.resident,
                live=use.live,
                peak_live=self.peak,
                gpu=on_gpu and on_gpu[0],
                peak_gpu=on_gpu and on_gpu[1],
                to_host=sum(boundary.to_host_bytes for boundary in self.boundaries) if self.boundaries else None,
                to_device=sum(boundary.to_device_bytes for boundary in self.boundaries) if self.boundaries else None,
            )
        )

    def _see(self) -> InUse:
        begin = time.thread_time()
        use = in_use()
        self._look_every = max(LOOK_EVERY, (time.thread_time() - begin) / LOOK_SHARE)
        if use.live is not None:
            self.peak = max(use.live, self.peak or 0)
        return use
