"""Columns in order: the numbers at given places after each column of a few rows is sorted; pure.

A few rows are sorted by comparing rows as vectors, which runs at the speed of memory. The comparisons are those of
Batcher's odd-even merge sort (1968), without those that the wanted places do not need. This is many times as fast as
sorting each column by itself. More rows than `FEW` are sorted column by column.
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
"""Dtypes of which NumPy compares rows in the cache in half the time of torch's dispatch."""


def mean_in_order(rows: Sequence[Tensor], first: int, last: int, into: Tensor) -> None:
    """Write to `into` (c) the mean of the numbers at the places from `first` to `last` - 1 of each column in order."""
    is_some = last - first < len(rows)
    middle = in_order(rows, first, last, is_pair=last - first == 2) if is_some else rows
    into.copy_(middle[0])
    for other in middle[1:]:
        into.add_(other)
    into.div_(last - first)


def in_order(rows: Sequence[Tensor], first: int, last: int, *, is_pair: bool = False) -> Sequence[Tensor]:
    """Return the numbers at the places from `first` to `last` - 1 of each column of n rows (c) in order, as rows.

    Numbers are finite. With `is_pair` there are two rows, in either order. `rows` are not changed; a returned row may
    be one of them, and is valid until the next call of this thread.
    """
    count, like = len(rows), rows[0]
    if count > FEW:
        return list(torch.stack(list(rows)).sort(0).values[first:last])
    pairs = comparisons(count, first, last, is_pair)
    if like.device.type != "cpu" or like.dtype not in _NUMPY:
        spare = [torch.empty_like(like) for _ in range(count + 1)]
        return _sorted(list(rows), spare, torch.minimum, torch.maximum, pairs)[first:last]
    memory = _SPARE.rows(count + 1, len(like), _NUMPY[like.dtype])
    ordered = _sorted([x.numpy() for x in rows], memory, np.minimum, np.maximum, pairs)
    return [torch.from_numpy(x) for x in ordered[first:last]]


def _sorted(
    rows: list[Any], spare: list[Any], minimum: Any, maximum: Any, pairs: Sequence[tuple[int, int, bool, bool]]
) -> list[Any]:
    """Return the rows after these comparisons, whose results are written to `spare` rows, one more than `rows`."""
    is_ours = [False] * len(rows)
    for low, high, needs_low, needs_high in pairs:
        first, second = rows[low], rows[high]
        free = [x for place, x in ((low, first), (high, second)) if is_ours[place]]
        if needs_low and needs_high:
            smaller = spare.pop()
            minimum(first, second, out=smaller)
            larger = free.pop() if free else spare.pop()
            maximum(first, second, out=larger)
            rows[low], rows[high], is_ours[low], is_ours[high] = smaller, larger, True, True
        else:
            place, choose = (low, minimum) if needs_low else (high, maximum)
            rows[place] = free.pop() if free else spare.pop()
            choose(first, second, out=rows[place])
            is_ours[place], is_ours[low + high - place] = True, False  # the other is no longer needed
        spare += free
    return rows


class _Spare(threading.local):
    """Each thread's rows for results of comparisons; kept memory causes no page faults."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def rows(self, count: int, numbers: int, dtype: Any) -> list[Any]:
        size = count * numbers * np.dtype(dtype).itemsize
        if self._bytes.size < size:
            self._bytes = np.empty(size, np.uint8)
        return list(self._bytes[:size].view(dtype).reshape(count, numbers))


_SPARE = _Spare()


@lru_cache(maxsize=64)
def comparisons(count: int, first: int, last: int, is_pair: bool) -> Sequence[tuple[int, int, bool, bool]]:
    """Return the pairs of places to compare, in order, until the wanted places are right; and whether the lower and the
    higher number of each pair are needed."""
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
            continue  # the last pair that affects them
        if low in wanted or high in wanted:
            kept.append((low, high, low in wanted, high in wanted))
            wanted |= {low, high}
    return kept[::-1]
