"""What workers give to a sum: vectors around one, with a header."""

from __future__ import annotations

import torch
from torch import Tensor

from quorate.core.vectors import Flat, Layout, header_in


def drawn(layout: Layout, rank: int, step: int = 0, weight: float = 1.0) -> Flat:
    """A worker's gradient times its weight, over nothing; the weight is the first of the header, of three numbers."""
    x = Flat.zeros(layout)
    for number, part in enumerate(x.parts):
        generator = torch.Generator().manual_seed(100 * step + 10 * rank + number)
        part.copy_(weight * (1 + 0.3 * torch.randn(part.shape, generator=generator)))
    header_in(x).copy_(torch.tensor([weight, 2.0, float(rank)]))
    return x


def numbers_of(x: Flat) -> Tensor:
    """All tensors, one after the other."""
    return torch.cat([x.segment(index).reshape(-1) for index in range(len(x.layout.segments))])
