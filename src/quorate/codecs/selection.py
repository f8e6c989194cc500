"""The k largest of many numbers: exactly k, and no smaller one; and the share of numbers that is sent."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError

_MANY = 50_000
"""Numbers from which on a sample is faster."""
_STEP = 100
"""Largest step between the numbers of a sample."""


def check_density(density: float) -> None:
    """Raise `ConfigurationError` for a density that is no share of all numbers."""
    if not 0 < density <= 1:
        raise ConfigurationError(f"density is {density}; it must be a share of all numbers, above 0 and at most 1")


def largest(sizes: Tensor, k: int) -> Tensor:
    """Return the places of the `k` largest of `sizes` (1-D), in no order; among equal ones the choice is undefined.

    A sample gives a bound that is very likely not too large. The k largest are chosen from the numbers that reach the
    bound, or from all numbers if too few reach it. On a GPU from all at once, which is faster there.
    """
    numel = sizes.numel()
    if k >= numel:
        return torch.arange(numel, device=sizes.device)
    step = min(_STEP, k // _STEP)
    if step > 1 and numel >= _MANY and 16 * k <= numel and sizes.device.type == "cpu":
        expected = k / step
        sample = sizes[::step]
        rank = min(sample.numel(), math.ceil(expected + 4 * math.sqrt(expected)) + 1)
        bound = sample.topk(rank, sorted=False).values.amin()
        candidates = (sizes >= bound).nonzero().view(-1)
        if candidates.numel() >= k:
            return candidates[sizes.index_select(0, candidates).topk(k, sorted=False).indices]
    return sizes.topk(k, sorted=False).indices
