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


def in_order(rows: Tensor, first: int, last: int) -> Sequence[Tensor]:
    """Of (n, c): what stands at the places from `first` to `last` - 1 of each column in order, as that many rows (c).

    Numbers are finite.
    """
    count = len(rows)
    if count > FEW:
        return list(rows.sort(0).values[first:last])
    found = list(rows)
    for low, high in comparisons(count, first, last):
        one, other = found[low], found[high]
        found[low], found[high] = torch.minimum(one, other), torch.maximum(one, other)
    return found[first:last]


@lru_cache(maxsize=64)
def comparisons(count: int, first: int, last: int) -> Sequence[tuple[int, int]]:
    """Pairs of places whose numbers are put in order, one after the other, until those places are right."""
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
    wanted, kept = set(range(first, last)), []
    for low, high in reversed(every):
        if low in wanted or high in wanted:
            wanted |= {low, high}
            kept.append((low, high))
    return kept[::-1]
