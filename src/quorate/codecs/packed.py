"""Several tensors packed as one tensor of bytes, and unpacked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def joined(*tensors: Tensor) -> Tensor:
    """The bytes of all of them, end to end (uint8); one alone is not copied."""
    found = [x.contiguous().view(-1).view(torch.uint8) for x in tensors]
    return found[0] if len(found) == 1 else torch.cat(found)


def cut(code: Tensor, *kinds: tuple[torch.dtype, int]) -> list[Tensor]:
    """The tensors that `joined` was given: of each its dtype and number of elements, in the same order."""
    found, at = list[Tensor](), 0
    for dtype, numel in kinds:
        end = at + numel * dtype.itemsize
        piece = code[at:end]
        if piece.storage_offset() % dtype.itemsize:
            piece = piece.clone()  # a view of another dtype begins at a multiple of its size
        found.append(piece.view(dtype))
        at = end
    return found


def ends_of(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Where each of several stretches of such lengths, end to end, begins and ends."""
    found, at = [], 0
    for count in counts:
        found.append((at, at + count))
        at += count
    return found
