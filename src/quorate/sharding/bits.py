"""Whether numbers are still those that they were, without a copy of them: a digest of their bits."""

from __future__ import annotations

import torch
from torch import Tensor

_WIDE = 1024
"""Words of 8 bytes in a row."""


def digest_of(x: Tensor) -> Tensor:
    """Two whole numbers on the device of `x`: sums over its bits, laid out as a table, of its rows and of its columns.

    They change when one number does, when two change places, and, but for a chance of some 2^-64, otherwise. Cost: two
    passes over `x` at the speed of memory; nothing is copied but a tensor that is not contiguous.
    """
    with torch.no_grad():
        octets = x.detach().contiguous().view(-1).view(torch.uint8) if x.numel() else x.new_empty(0, dtype=torch.uint8)
        if octets.storage_offset() % 8:
            octets = octets.clone()
        words = octets.numel() // 8
        table = octets[: words * 8].view(torch.int64)
        rest = _weighted(octets[words * 8 :].long())
        whole = words // _WIDE * _WIDE
        rest = rest + _weighted(table[whole:])
        grid = table[:whole].view(-1, _WIDE)
        return torch.stack([_weighted(grid.sum(1)) + rest, _weighted(grid.sum(0)) + rest])


def _weighted(sums: Tensor) -> Tensor:
    odd = torch.arange(sums.numel(), device=sums.device) * 2 + 1
    return (sums * (odd * 0x9E3779B97F4A7C1)).sum()
