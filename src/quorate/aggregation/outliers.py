"""Vectors that are far from the others, found from their inner products alone; pure."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from quorate.aggregation.distances import squared_distances

_FAR = 3.0
"""Multiple of the usual distance that is far."""


def far_rows(gram: Tensor) -> list[int]:
    """Return the places of the n vectors with inner products `gram` (n, n) whose median distance to the others is more
    than 3 times the median of these; none of fewer than 3 vectors."""
    count = len(gram)
    if count < 3:
        return []
    distances = np.sort(squared_distances(gram).numpy(), 1)  # of each from itself, 0, in front
    usual = np.sqrt(distances[:, 1 + (count - 2) // 2])
    return [int(place) for place in np.flatnonzero(usual > _FAR * np.sort(usual)[(count - 1) // 2])]
