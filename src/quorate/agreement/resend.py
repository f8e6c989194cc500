"""What a worker has given to a sum, once more: for sums that are formed anew when a worker has died."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import Parameter

from quorate.buckets.flat import pack
from quorate.core.vectors import Flat
from quorate.reducers.dense import Dense
from quorate.reducers.outliving import Outliving


def again(given: Flat, reducer: Dense | Outliving) -> Callable[[], Flat]:
    """`given`, which the sum is written into, from a copy of it; not copied where it is never asked for."""
    if isinstance(reducer, Dense):
        return lambda: given
    copy = Flat.empty(given.layout, reducer.wire.empty)
    for there, x in zip(copy.parts, given.parts, strict=True):
        there.copy_(x)
    return lambda: copy


def packed_again(
    parameters: Sequence[Parameter], header: Sequence[float], scale: float, blank: Callable[[], Flat]
) -> Callable[[], Flat]:
    """The gradients, which still stand in `.grad` until the mean is written there, `scale` times, and a header."""

    def make() -> Flat:
        fresh = blank()
        pack([p.grad for p in parameters], fresh, scale=scale)
        fresh.header.copy_(torch.tensor(header, dtype=fresh.header.dtype))
        return fresh

    return make
