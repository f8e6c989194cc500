"""Columns in order: which numbers stand at some places when each column of a few rows is sorted; pure.

A few rows are sorted by comparisons of whole rows, which run at the speed of memory: Batcher's odd-even merge sort
(1968), of which only those comparisons are made that the wanted places need. That is many times as fast as sorting each
column by itself. More rows than `FEW` are sorted column by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

FEW = 24


def in_order(rows: Tensor, first: int, last: int, *, is_pair: bool = False) -> Sequence[Tensor]:
    """Of (n, c): what stands at the places from `first` to `last` - 1 of each column in order, as that many rows (c).

    Numbers are finite. With `is_pair` there are two, of which either may be the lower one.
    """
    count = len(rows)
    if count > FEW:
        return list(rows.sort(0).values[first:last])
    found = list(rows)
    for low, high, needs_low, needs_high in comparisons(count, first, last, is_pair):
        one, other = found[low], found[high]
        if needs_low:
            found[low] = torch.minimum(one, other)
        if needs_high:
            found[high] = torch.maximum(one, other)
    return found[first:last]


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
