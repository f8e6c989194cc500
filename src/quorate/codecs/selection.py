"""The k largest of many numbers: exactly k, and no smaller one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MANY = 50_000
"""From so many numbers on a sample is quicker."""
_STEP = 100
"""One number in so many is in the sample, at most."""


def largest(sizes: Tensor, k: int) -> Tensor:
    """Where the `k` largest of `sizes` (1-D) are, in no order; which ones of several that are equal is not said.

    A sample tells what a number that is certainly not too large to begin with is, and the k largest are chosen from
    those that reach it; if these are too few after all, from all. On a GPU from all at once, which it is good at.
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
