"""The precision of devices: some (Apple's and Intel's GPUs) have no float64."""

from __future__ import annotations

from functools import cache

import torch


@cache
def widest(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device that refuses it."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return torch.float32
    return torch.float64
