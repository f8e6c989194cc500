"""Several tensors packed as one tensor of bytes, and unpacked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def joined(*tensors: Tensor) -> Tensor:
    """Return the bytes of all tensors, end to end (uint8); a single one is not copied."""
    parts = [x.contiguous().view(-1).view(torch.uint8) for x in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def cut(code: Tensor, *kinds: tuple[torch.dtype, int]) -> list[Tensor]:
    """Return the tensors in a code of `joined`; `kinds` are their dtypes and numbers of elements, in order."""
    tensors, at = list[Tensor](), 0
    for dtype, numel in kinds:
        end = at + numel * dtype.itemsize
        piece = code[at:end]
        if piece.storage_offset() % dtype.itemsize:
            piece = piece.clone()  # a view of another dtype begins at a multiple of its size
        tensors.append(piece.view(dtype))
        at = end
    return tensors


def ends_of(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return (begin, end) of each of several parts of lengths `counts`, end to end."""
    ends, at = [], 0
    for count in counts:
        ends.append((at, at + count))
        at += count
    return ends
