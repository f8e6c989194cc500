"""Vectors that are mostly zeros, as messages between hosts: places and numbers, exact to the bit; pure.

Sparse codecs leave mostly zeros in a contribution, and so in sums of few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quorate.core.vectors import Flat, Layout

_FEWEST = 1024


def written(vector: Flat) -> tuple[tuple[Tensor, ...], list[bool]]:
    """Return the tensors of a message, and which parts are places (int32) and numbers: those that are shorter so."""
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
    tensors: Sequence[Tensor], are_sparse: Sequence[bool], layout: Layout, blank: Callable[[Layout], Flat]
) -> Flat:
    """Return the vector that `written` has made these tensors of."""
    into, left = blank(layout), iter(tensors)
    for part, is_sparse in zip(into.parts, are_sparse, strict=True):
        if is_sparse:
            where = next(left).long()
            part.zero_()[where] = next(left)
        else:
            part.copy_(next(left))
    return into
