"""Which vectors are far from the others, from their inner products alone; pure."""

from __future__ import annotations

import torch
from torch import Tensor

from quorate.aggregation.distances import squared_distances

_FAR = 3.0
"""How many times the usual distance."""


def far_rows(gram: Tensor) -> list[int]:
    """Of n vectors with inner products `gram` (n, n), those whose median distance to the others is more than 3 times
    the median of these: places, none of fewer than 3 vectors."""
    count = len(gram)
    if count < 3:
        return []
    others = squared_distances(gram)[~torch.eye(count, dtype=torch.bool)].reshape(count, count - 1).sqrt()
    usual = others.median(1).values
    return [place for place in range(count) if float(usual[place]) > _FAR * float(usual.median())]
