"""Digests of the bits of numbers, which detect changes without a copy, or inputs that differ between workers."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from quorate.core.local_tensor import local

_WIDE = 1024
"""Words of 8 bytes in a row."""
_ROWS_ON_CPU, _ROWS_ON_GPU = 128, 1 << 14
"""Rows that are digested together: their intermediate results stay in a processor's cache."""
_ODD = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9)


def digest_of(x: Tensor) -> Tensor:
    """Return four integers on the device of `x`, made from its bits.

    The bits are laid out as a table of words; each row and each column is summed, and so are the upper halves, in which
    no bit is lost. One changed number is always detected, and so are two that change places; a change that leaves all
    these sums equal is not. Cost: four passes, most of them in the processor's cache; in memory 1 MB.
    """
    with torch.no_grad():
        octets = x.detach().contiguous().view(-1).view(torch.uint8) if x.numel() else x.new_empty(0, dtype=torch.uint8)
        if octets.storage_offset() % 8:
            octets = octets.clone()
        words = octets.numel() // 8
        whole = words // _WIDE * _WIDE
        grid = octets[: whole * 8].view(torch.int64).view(-1, _WIDE)
        rest = octets[whole * 8 : words * 8].view(torch.int64)
        columns = torch.zeros(2, _WIDE, dtype=torch.int64, device=x.device)
        rows = []
        for part in grid.split(_ROWS_ON_CPU if x.device.type == "cpu" else _ROWS_ON_GPU):
            upper = part >> 32
            rows.append(torch.stack([part.sum(1), upper.sum(1)]))
            columns += torch.stack([part.sum(0), upper.sum(0)])
        rows.append(torch.stack([rest, rest >> 32]))
        rows.append(octets[words * 8 :].long().expand(2, -1))
        return torch.cat([_mixed(torch.cat(rows, 1)), _mixed(columns) if whole else columns[:, 0]])


def _mixed(sums: Tensor) -> Tensor:
    """Return one number for each row, which depends on positions and all bits of its sums."""
    for odd in _ODD:
        sums = (sums + torch.arange(1, sums.shape[1] + 1, device=sums.device)) * odd
        sums = sums ^ (sums >> 31)
    return sums.sum(1)


def digest_of_inputs(values: Any) -> int:
    """Return the CRC-32 of the bits of all tensors in `values`, also inside lists and dictionaries. For tensors on a
    GPU it covers a digest that is made there."""
    checksum = 0
    for value in values:
        if isinstance(value, Tensor):
            x = local(value).detach().contiguous()
            x = x if x.device.type == "cpu" else digest_of(x).cpu()
            checksum = zlib.crc32(x.view(-1).view(torch.uint8).numpy().tobytes(), checksum) if x.numel() else checksum
        elif isinstance(value, list | tuple):
            checksum = zlib.crc32(digest_of_inputs(value).to_bytes(4, "little"), checksum)
        elif isinstance(value, dict):
            checksum = zlib.crc32(digest_of_inputs(value.values()).to_bytes(4, "little"), checksum)
    return checksum
