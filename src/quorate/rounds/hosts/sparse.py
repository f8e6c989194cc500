"""Vectors that are mostly zeros, as messages between hosts: places and numbers, bit for bit what they were; pure.

What sparse codecs leave in a contribution is mostly zeros, and so are sums of few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quorate.core.vectors import Flat, Layout

_FEWEST = 1024
"""Numbers from which a part is looked at."""


def written(vector: Flat) -> tuple[tuple[Tensor, ...], list[bool]]:
    """The tensors of a message, and which parts are in it as places (int32) and numbers: those that are shorter so."""
    tensors, are_sparse = list[Tensor](), list[bool]()
    for part in vector.parts:
        size = part.element_size()
        is_sparse = part.numel() >= _FEWEST and int(part.count_nonzero()) * (4 + size) < part.numel() * size
        are_sparse.append(is_sparse)
        if is_sparse:
            where = part.nonzero().view(-1)
            tensors += [where.to(torch.int32), part[where]]
        else:
            tensors.append(part)
    return tuple(tensors), are_sparse


def read(
    tensors: Sequence[Tensor], are_sparse: Sequence[bool] | None, layout: Layout, blank: Callable[[Layout], Flat]
) -> Flat:
    """The vector that `written` has made these of; with None they are its parts."""
    if are_sparse is None or not any(are_sparse):
        return Flat(tensors, layout)
    into, left = blank(layout), iter(tensors)
    for part, is_sparse in zip(into.parts, are_sparse, strict=True):
        if is_sparse:
            where = next(left).long()
            part.zero_()[where] = next(left)
        else:
            part.copy_(next(left))
    return into
