"""POSIX semaphores in shared memory, by which one process signals another.

A process whose wait succeeds also sees everything written before the post, on every kind of processor; a waiting
process sleeps, and takes no core from those that compute.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEMAPHORE_BYTES = 64
"""Bytes for one semaphore, which takes at most 32, in a cache line of its own."""


class _Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


@functools.cache
def _functions() -> dict[str, Any] | None:
    """Return the C library's functions for semaphores; None where it lacks them. Only waits let other threads run."""
    quick, slow = ctypes.PyDLL(None), ctypes.CDLL(None, use_errno=True)
    try:
        init, post, trywait = quick.sem_init, quick.sem_post, quick.sem_trywait
        wait = slow.sem_clockwait if hasattr(slow, "sem_clockwait") else slow.sem_timedwait
    except AttributeError:
        return None
    init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    post.argtypes = trywait.argtypes = [ctypes.c_void_p]
    by_clock = hasattr(slow, "sem_clockwait")
    clock = [ctypes.c_int] if by_clock else []
    wait.argtypes = [ctypes.c_void_p, *clock, ctypes.POINTER(_Time)]
    return {"init": init, "post": post, "trywait": trywait, "wait": wait, "by_clock": by_clock}


class Semaphores:
    """The semaphores in `memory` (bytes, shared); each may be posted by one process, and is waited for by one."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self._first = memory.ctypes.data
        functions = _functions()
        assert functions is not None, "semaphores are only used where there are some"
        self._init, self._post, self._trywait = functions["init"], functions["post"], functions["trywait"]
        self._wait, self._by_clock = functions["wait"], bool(functions["by_clock"])

    def initialize(self) -> None:
        """Set all semaphores to 0; called once, by the process that waits for them, before it shares the memory."""
        for place in range(0, len(self._memory), SEMAPHORE_BYTES):
            self._init(self._first + place, 1, 0)

    def post(self, number: int) -> None:
        """Post once; the process that takes the post sees everything written before."""
        self._post(self._first + number * SEMAPHORE_BYTES)

    def try_wait(self, number: int) -> bool:
        """Take a post, if there is one; return whether there was. Never waits."""
        return bool(self._trywait(self._first + number * SEMAPHORE_BYTES) == 0)

    def wait(self, number: int, seconds: float) -> bool:
        """Take a post within `seconds`; return whether there was one. A signal ends the wait too."""
        which = time.CLOCK_MONOTONIC if self._by_clock else time.CLOCK_REALTIME
        until = time.clock_gettime(which) + max(0.0, seconds)
        limit = ctypes.byref(_Time(int(until), int(until % 1 * 1e9)))
        place = self._first + number * SEMAPHORE_BYTES
        result = self._wait(place, which, limit) if self._by_clock else self._wait(place, limit)
        assert result == 0 or ctypes.get_errno() in (errno.ETIMEDOUT, errno.EINTR), "no semaphore is there"
        return bool(result == 0)


def are_there() -> bool:
    """Whether this system has such semaphores."""
    return _functions() is not None
