"""Bells in shared memory, by which one process tells another that something is there: POSIX semaphores.

Whoever hears a bell also sees everything that was written before it was rung, on every kind of processor; whoever waits
for one sleeps, and takes no core from those that compute.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

BELL_BYTES = 64
"""Of one bell: a semaphore (at most 32 bytes) in a cache line of its own."""


class _Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


@functools.cache
def _functions() -> dict[str, Any] | None:
    """What the C library has of semaphores; None where it lacks them. Only waits let other threads run."""
    quick, slow = ctypes.PyDLL(None), ctypes.CDLL(None, use_errno=True)
    try:
        hang, ring, hear = quick.sem_init, quick.sem_post, quick.sem_trywait
        wait = slow.sem_clockwait if hasattr(slow, "sem_clockwait") else slow.sem_timedwait
    except AttributeError:
        return None
    hang.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    ring.argtypes = hear.argtypes = [ctypes.c_void_p]
    by_clock = hasattr(slow, "sem_clockwait")
    clock = [ctypes.c_int] if by_clock else []
    wait.argtypes = [ctypes.c_void_p, *clock, ctypes.POINTER(_Time)]
    return {"hang": hang, "ring": ring, "hear": hear, "wait": wait, "by_clock": by_clock}


class Bells:
    """The bells in `memory` (bytes, shared); each may be rung by one process and is heard by one."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self._first = memory.ctypes.data
        functions = _functions()
        assert functions is not None, "bells are only used where there are some"
        self._hang, self._ring, self._hear = functions["hang"], functions["ring"], functions["hear"]
        self._wait, self._by_clock = functions["wait"], bool(functions["by_clock"])

    def hang(self) -> None:
        """Make them, all silent; once, by the process that hears them, before it shows the memory to others."""
        for place in range(0, len(self._memory), BELL_BYTES):
            self._hang(self._first + place, 1, 0)

    def ring(self, number: int) -> None:
        """Once more; whoever hears it sees what was written before."""
        self._ring(self._first + number * BELL_BYTES)

    def heard(self, number: int) -> bool:
        """Whether it was rung once more than it was heard by now; never waits."""
        return bool(self._hear(self._first + number * BELL_BYTES) == 0)

    def wait(self, number: int, seconds: float) -> bool:
        """As `heard`, after at most `seconds`; a signal ends the wait too."""
        which = time.CLOCK_MONOTONIC if self._by_clock else time.CLOCK_REALTIME
        until = time.clock_gettime(which) + max(0.0, seconds)
        limit = ctypes.byref(_Time(int(until), int(until % 1 * 1e9)))
        place = self._first + number * BELL_BYTES
        result = self._wait(place, which, limit) if self._by_clock else self._wait(place, limit)
        assert result == 0 or ctypes.get_errno() in (errno.ETIMEDOUT, errno.EINTR), "no bell hangs there"
        return bool(result == 0)


def are_there() -> bool:
    """Whether this system has them."""
    return _functions() is not None
