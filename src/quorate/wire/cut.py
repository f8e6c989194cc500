"""The pieces of a vector, one for each worker, and the bytes that a worker sends for a collective; pure.

Bytes are those of the formulas of the field: P is the number of workers, n the bytes of the full tensor. A backend may
send other numbers of bytes, by its choice of algorithm; these are the figures that reports and plans use (Thakur,
Rabenseifner, Gropp, 2005, ring forms).
"""

from __future__ import annotations

import math

WHOLE_BYTES = 1 << 16
"""Largest tensor that is not cut: more messages, and a second hop, would cost more than they save."""


def piece(numel: int, rank: int, size: int) -> slice:
    """Return the elements of the piece of `rank`, one of `size` workers, in full cache lines for any dtype."""
    width = math.ceil(numel / size / 64) * 64
    return slice(min(rank * width, numel), min((rank + 1) * width, numel))


def all_reduce_bytes(nbytes: int, size: int) -> int:
    """Ring: 2 (P - 1) / P n, rounded up."""
    return -(-2 * (size - 1) * nbytes // size)


def piece_bytes(numel: int, itemsize: int, rank: int, size: int) -> int:
    """Return the bytes of piece `rank` of `numel` elements as `tensor_split` cuts them: larger pieces first."""
    return (numel // size + (rank < numel % size)) * itemsize
