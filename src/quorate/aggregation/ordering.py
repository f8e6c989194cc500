"""Columns in order: the numbers at given places after each column of a few rows is sorted; pure.

A few rows are sorted by comparisons of whole rows, which run at the speed of memory: Batcher's odd-even merge sort
(1968), without the comparisons that the wanted places do not need. This is many times as fast as sorting each column by
itself. More rows than `FEW` are sorted column by column.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

FEW = 24
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
"""Of these NumPy compares rows, which lie in the cache, in half the time of torch's dispatch."""


def in_order(rows: Tensor, first: int, last: int, *, is_pair: bool = False) -> Sequence[Tensor]:
    """Of (n, c): what stands at the places from `first` to `last` - 1 of each column in order, as that many rows (c).

    Numbers are finite. With `is_pair` there are two, of which either may be the lower one. `rows` are overwritten, and
    what is returned is valid until the next call of this thread.
    """
    count = len(rows)
    if count > FEW:
        return list(rows.sort(0).values[first:last])
    pairs = comparisons(count, first, last, is_pair)
    if rows.device.type != "cpu" or rows.dtype not in _NUMPY:
        found = _sorted(list(rows), torch.empty_like(rows[0]), torch.minimum, torch.maximum, pairs)
        return list(found[first:last])
    spare = _SPARE.row(rows.shape[1], _NUMPY[rows.dtype])
    found = _sorted(list(rows.numpy()), spare, np.minimum, np.maximum, pairs)
    return [torch.from_numpy(one) for one in found[first:last]]


def _sorted(
    found: list[Any], spare: Any, minimum: Any, maximum: Any, pairs: Sequence[tuple[int, int, bool, bool]]
) -> Any:
    """The rows after these comparisons, which are made in their own memory and in `spare`, a row more."""
    for low, high, needs_low, needs_high in pairs:
        one, other = found[low], found[high]
        if needs_low and needs_high:
            minimum(one, other, out=spare)
            maximum(one, other, out=other)
            found[low], spare = spare, one
        elif needs_low:
            minimum(one, other, out=one)
        else:
            maximum(one, other, out=other)
    return found


class _Spare(threading.local):
    """Each thread's row for numbers that change places; memory that is kept costs no page faults."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def row(self, numbers: int, dtype: Any) -> Any:
        size = numbers * np.dtype(dtype).itemsize
        if self._bytes.size < size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size].view(dtype)


_SPARE = _Spare()


@lru_cache(maxsize=64)
def comparisons(count: int, first: int, last: int, is_pair: bool) -> Sequence[tuple[int, int, bool, bool]]:
    """Pairs of places whose numbers are put in order, one after the other, until those places are right; and which of
    the two, the lower and the higher, is needed."""
    every = []
    span = 1
    while span < count:
        step = span
        while step >= 1:
            for begin in range(step % span, count - step, 2 * step):
                for place in range(begin, min(begin + step, count - step)):
                    if place // (2 * span) == (place + step) // (2 * span):
                        every.append((place, place + step))
            step //= 2
        span *= 2
    wanted, kept = set(range(first, last)), list[tuple[int, int, bool, bool]]()
    for low, high in reversed(every):
        if is_pair and not kept and wanted == {low, high}:
            continue  # the last one that has to do with them
        if low in wanted or high in wanted:
            kept.append((low, high, low in wanted, high in wanted))
            wanted |= {low, high}
    return kept[::-1]
