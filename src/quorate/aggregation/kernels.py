"""Passes over columns of a few vectors, which numba compiles (the extra `kernels`); for vectors in the CPU's memory.

A pass reads `BLOCK` columns of all vectors at a time. These stay in the nearest cache while they are compared,
multiplied or added up, so each vector is read from memory once. Results may be written where the vectors lie.

Vectors are given by their addresses, as an array of integers, and are all as wide as `width`; `like` is an empty array
of their dtype, float32 or float64. Each is divided by its divisor, which may be 1. A function is compiled for the
dtypes that it is first called with, which takes about a second, and kept on disk for the next process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

BLOCK = 256
_REORDERED = {"reassoc", "contract", "nsz"}
"""Sums may be formed in any order, several numbers at a time; infinities and NaN are kept."""


def _compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            dispatcher: Callable[..., Any] = numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # there is no folder for its cache
            dispatcher = numba.njit(nogil=True, **options)(function)
        return dispatcher

    return compiled


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_context: Any, address: Any, like: Any) -> Any:
    """Return a pointer to numbers of the dtype of `like`."""
    kind = types.CPointer(like.dtype)

    def generated(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(address, like), generated


@_compiled(inline="always")
def _columns(address, begin, end, like):  # type: ignore[no-untyped-def]
    return numba.carray(_pointer(address, like), (end,))[begin:end]


@_compiled(inline="always")
def _read(address, divisor, begin, end, like, into):  # type: ignore[no-untyped-def]
    """Copy columns of a vector, divided, to `into`."""
    source = _columns(address, begin, end, like)
    if divisor == 1.0:
        for k in range(end - begin):
            into[k] = source[k]
    else:
        by = into.dtype.type(divisor)
        for k in range(end - begin):
            into[k] = source[k] / by


@_compiled(inline="always")
def _write(source, into, begin, end, like):  # type: ignore[no-untyped-def]
    """Copy the begin of `source` to these columns of all vectors at the addresses of `into`."""
    for place in range(len(into)):
        there = _columns(into[place], begin, end, like)
        for k in range(end - begin):
            there[k] = source[k]


@_compiled(fastmath=_REORDERED, inline="always")
def _dot(x, y, count):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    for k in range(count):
        total += x[k] * y[k]
    return total


@_compiled(fastmath=_REORDERED, inline="always")
def _two_dots(x, y, z, count):  # type: ignore[no-untyped-def]
    """Return the products of x with y and with z; x is read once."""
    first, second = x.dtype.type(0), x.dtype.type(0)
    for k in range(count):
        first += x[k] * y[k]
        second += x[k] * z[k]
    return first, second


@_compiled(fastmath=_REORDERED)
def add_products(addresses, divisors, centre, width, like, sums, products):  # type: ignore[no-untyped-def]
    """Add to `products` (n, n; float64; its lower half) the inner products of all pairs of n vectors less the `centre`
    (`width`, or empty: none). Those of a block are formed in the dtype of `sums`, an empty array."""
    count = len(addresses)
    seen = np.empty((count, BLOCK), sums.dtype)
    for begin in range(0, width, BLOCK):
        end = min(width, begin + BLOCK)
        many = end - begin
        for row in range(count):
            own = seen[row]
            _read(addresses[row], divisors[row], begin, end, like, own)
            if len(centre):
                here = centre[begin:end]
                for k in range(many):
                    own[k] -= here[k]
        for row in range(count):
            other = 0
            while other < row:
                first, second = _two_dots(seen[row], seen[other], seen[other + 1], many)
                products[row, other] += first
                products[row, other + 1] += second
                other += 2
            if other == row:
                products[row, row] += _dot(seen[row], seen[row], many)


@_compiled()
def write_weighed(addresses, weights, centre, weight, width, like, sums, into):  # type: ignore[no-untyped-def]
    """Write the sum of vectors by their `weights`, and of the `centre` (`width`, or empty: none) by its `weight`, to
    all addresses of `into`. Vectors of weight 0 are not read. It is formed in the dtype of `sums`, an empty array."""
    total, written = np.empty(BLOCK, sums.dtype), np.empty(BLOCK, like.dtype)
    for begin in range(0, width, BLOCK):
        end = min(width, begin + BLOCK)
        many = end - begin
        is_first = len(centre) == 0
        if len(centre):
            here, by = centre[begin:end], sums.dtype.type(weight)
            for k in range(many):
                total[k] = by * here[k]
        for row in range(len(addresses)):
            if weights[row] == 0.0:
                continue
            source, by = _columns(addresses[row], begin, end, like), sums.dtype.type(weights[row])
            if is_first:
                for k in range(many):
                    total[k] = by * source[k]
            else:
                for k in range(many):
                    total[k] += by * source[k]
            is_first = False
        if is_first:
            total[:] = 0.0
        for k in range(many):
            written[k] = total[k]
        _write(written, into, begin, end, like)


@_compiled()
def write_middle(addresses, divisors, pairs, first, last, width, like, into):  # type: ignore[no-untyped-def]
    """Write to all addresses of `into` the mean of the numbers at the places from `first` to `last` - 1 of each column
    in order. For that `pairs` (m, 2) of places are ordered, one after the other; numbers are finite."""
    count = len(addresses)
    seen, total = np.empty((count, BLOCK), like.dtype), np.empty(BLOCK, like.dtype)
    many_of = like.dtype.type(last - first)
    for begin in range(0, width, BLOCK):
        end = min(width, begin + BLOCK)
        many = end - begin
        for row in range(count):
            _read(addresses[row], divisors[row], begin, end, like, seen[row])
        for pair in range(len(pairs)):
            low, high = seen[pairs[pair, 0]], seen[pairs[pair, 1]]
            for k in range(many):
                x, y = low[k], high[k]
                low[k] = x if x < y else y
                high[k] = y if x < y else x
        for k in range(many):
            total[k] = seen[first, k]
        for place in range(first + 1, last):
            own = seen[place]
            for k in range(many):
                total[k] += own[k]
        for k in range(many):
            total[k] /= many_of
        _write(total, into, begin, end, like)
