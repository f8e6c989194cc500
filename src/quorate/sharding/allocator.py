"""Return freed memory to the kernel once in a step, so that gathered parameters do not stay resident.

glibc keeps freed memory for later requests, and raises the size from which an allocation is a mapping of its own, so
gathered parameters and gradients stay resident. Returning allocations of 128 KiB and more at once, as a fixed
threshold does, is slower: the memory of passes is mapped anew many times in a step. Measured with 25 million
parameters in two shards, two workers each: 0.82 s a step and 221 MB resident after it with that threshold, 0.55 s and
215 MB where memory is returned at the end of the step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def give_back() -> bool:
    """Return free memory to the kernel. Return whether the C library returned any (glibc only)."""
    trim = _trim()
    return trim is not None and bool(trim(0))


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        malloc_trim: Callable[[int], int] = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None
    return malloc_trim
