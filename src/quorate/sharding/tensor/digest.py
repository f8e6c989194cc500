"""A digest of a model's inputs, to check that workers have the same."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from quorate.core.local_tensor import local
from quorate.sharding import bits


def digest_of(values: Any) -> int:
    """Return the CRC-32 of the bits of all tensors in `values`, also inside lists and dictionaries. For tensors on a
    GPU it covers a digest that is made there."""
    checksum = 0
    for value in values:
        if isinstance(value, Tensor):
            x = local(value).detach().contiguous()
            x = x if x.device.type == "cpu" else bits.digest_of(x).cpu()
            checksum = zlib.crc32(x.view(-1).view(torch.uint8).numpy().tobytes(), checksum) if x.numel() else checksum
        elif isinstance(value, list | tuple):
            checksum = zlib.crc32(digest_of(value).to_bytes(4, "little"), checksum)
        elif isinstance(value, dict):
            checksum = zlib.crc32(digest_of(value.values()).to_bytes(4, "little"), checksum)
    return checksum
