"""Whether workers were given the same: a number made of what a model is called with."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from quorate.core.local_tensor import local
from quorate.sharding import bits


def digest_of(values: Any) -> int:
    """CRC-32 of the bits of all tensors in `values`, and in lists and dictionaries there; of tensors on a GPU, of a
    digest that is made there."""
    found = 0
    for value in values:
        if isinstance(value, Tensor):
            x = local(value).detach().contiguous()
            x = x if x.device.type == "cpu" else bits.digest_of(x).cpu()
            found = zlib.crc32(x.view(-1).view(torch.uint8).numpy().tobytes(), found) if x.numel() else found
        elif isinstance(value, list | tuple):
            found = zlib.crc32(digest_of(value).to_bytes(4, "little"), found)
        elif isinstance(value, dict):
            found = zlib.crc32(digest_of(value.values()).to_bytes(4, "little"), found)
    return found
