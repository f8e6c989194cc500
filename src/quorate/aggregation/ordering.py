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


def mean_in_order(rows: Sequence[Tensor], first: int, last: int, into: Tensor) -> None:
    """Write to `into` (c) the mean of what stands at the places from `first` to `last` - 1 of each column in order."""
    is_some = last - first < len(rows)
    middle = in_order(rows, first, last, is_pair=last - first == 2) if is_some else rows
    into.copy_(middle[0])
    for other in middle[1:]:
        into.add_(other)
    into.div_(last - first)


def in_order(rows: Sequence[Tensor], first: int, last: int, *, is_pair: bool = False) -> Sequence[Tensor]:
    """Of n rows (c): what stands at the places from `first` to `last` - 1 of each column in order, as that many rows.

    Numbers are finite. With `is_pair` there are two, of which either may be the lower one. `rows` are not changed; what
    is returned may be one of them, and is valid until the next call of this thread.
    """
    count, like = len(rows), rows[0]
    if count > FEW:
        return list(torch.stack(list(rows)).sort(0).values[first:last])
    pairs = comparisons(count, first, last, is_pair)
    if like.device.type != "cpu" or like.dtype not in _NUMPY:
        spare = [torch.empty_like(like) for _ in range(count + 1)]
        return _sorted(list(rows), spare, torch.minimum, torch.maximum, pairs)[first:last]
    memory = _SPARE.rows(count + 1, len(like), _NUMPY[like.dtype])
    found = _sorted([x.numpy() for x in rows], memory, np.minimum, np.maximum, pairs)
    return [torch.from_numpy(one) for one in found[first:last]]


def _sorted(
    found: list[Any], spare: list[Any], minimum: Any, maximum: Any, pairs: Sequence[tuple[int, int, bool, bool]]
) -> list[Any]:
    """The rows after these comparisons, whose results are written to `spare` rows, one more than there are rows."""
    is_ours = [False] * len(found)
    for low, high, needs_low, needs_high in pairs:
        one, other = found[low], found[high]
        mine = [x for place, x in ((low, one), (high, other)) if is_ours[place]]
        if needs_low and needs_high:
            smaller = spare.pop()
            minimum(one, other, out=smaller)
            larger = mine.pop() if mine else spare.pop()
            maximum(one, other, out=larger)
            found[low], found[high], is_ours[low], is_ours[high] = smaller, larger, True, True
        else:
            place, choose = (low, minimum) if needs_low else (high, maximum)
            found[place] = mine.pop() if mine else spare.pop()
            choose(one, other, out=found[place])
            is_ours[place], is_ours[low + high - place] = True, False  # the other one is needed no more
        spare += mine
    return found


class _Spare(threading.local):
    """Each thread's rows for what comparisons give; memory that is kept costs no page faults."""

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
