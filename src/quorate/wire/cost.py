"""Bytes that one worker sends for each collective, by the formulas of the field.

P is the number of workers, n the bytes of the full tensor. A backend may send other numbers of bytes, by its choice of
algorithm; these are the figures that reports and plans use (Thakur, Rabenseifner, Gropp, 2005, ring forms).
"""

from __future__ import annotations


def all_reduce_bytes(nbytes: int, size: int) -> int:
    """Ring: 2 (P - 1) / P n, rounded up."""
    return -(-2 * (size - 1) * nbytes // size)


def piece_bytes(numel: int, itemsize: int, rank: int, size: int) -> int:
    """Return the bytes of piece `rank` of `numel` elements as `tensor_split` cuts them: larger pieces first."""
    return (numel // size + (rank < numel % size)) * itemsize
