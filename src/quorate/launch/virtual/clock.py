"""The virtual clock behind python's `time`, for scripts in virtual workers."""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

from quorate.launch.virtual.patching import StandIns, here, scheduler

EPOCH = 946_684_800.0
"""The value of `time.time()` at the start of a virtual world: the year 2000 (UTC), so that a run can be repeated."""

LOOK_SECONDS = 1e-6
"""A look at the clock takes a microsecond, so that loops which wait for a time end, and no interval is empty."""

_ZERO = {"time": EPOCH, "monotonic": 0.0, "perf_counter": 0.0, "process_time": 0.0, "thread_time": 0.0}


def put_virtual_time(stand_ins: StandIns) -> None:
    """`time.time`, `monotonic`, `perf_counter`, `process_time`, `thread_time`, their `_ns` forms, and `sleep`.

    Not `datetime.now()`, `time.localtime()` and the like without an argument: they are the real ones.
    """
    for name, zero in _ZERO.items():
        stand_ins.put(time, name, lambda original, zero=zero: zero + look())
        stand_ins.put(time, f"{name}_ns", lambda original, zero=zero: int(zero) * 10**9 + round(look() * 1e9))
    stand_ins.put(time, "sleep", _sleep)


def look() -> float:
    """The virtual time of the worker that asks; seconds since the world began."""
    strand = here()
    assert strand is not None
    strand.ahead += LOOK_SECONDS
    return scheduler().now + strand.ahead


def _sleep(original: Any, seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    strand = here()
    if strand is not None and _is_importing():
        strand.ahead += seconds
    else:
        scheduler().sleep(seconds)


def _is_importing() -> bool:
    """Whether a module is under import: another worker that imports it would wait for its lock, with the baton."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False
