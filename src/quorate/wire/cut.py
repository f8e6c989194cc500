"""The pieces of a vector, one for each worker; pure."""

from __future__ import annotations

import math

WHOLE_BYTES = 1 << 16
"""Largest tensor that is not cut: more messages, and a second hop, would cost more than they save."""


def piece(numel: int, rank: int, size: int) -> slice:
    """Return the elements of the piece of `rank`, one of `size` workers, in full cache lines for any dtype."""
    width = math.ceil(numel / size / 64) * 64
    return slice(min(rank * width, numel), min((rank + 1) * width, numel))
