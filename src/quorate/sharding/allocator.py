"""How the C library gives memory back: once in a step, so that gathered parameters do not stay resident.

glibc keeps what is freed for what comes next, and raises the size from which a piece is a mapping of its own, so
gathered parameters and gradients stay resident. Giving back pieces of 128 KiB and more at once, which a fixed threshold
does, is slower: what passes take is then mapped anew many times in a step. Measured with 25 million parameters in two
shards, each time two workers: 0.82 s a step and 221 MB resident behind it with that threshold, 0.55 s and 215 MB where
memory is given back at the end of the step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def give_back() -> bool:
    """Let the kernel have what is free; whether the C library has given anything (glibc only)."""
    trim = _trim()
    return trim is not None and bool(trim(0))


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None
    return found
