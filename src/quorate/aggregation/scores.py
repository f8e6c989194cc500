"""Scores of vectors by the distances to their neighbours."""

from __future__ import annotations

import math

from torch import Tensor


def by_krum(squared_distance: Tensor, f: int) -> list[int]:
    """Return the places of n vectors, best first: by the sum of squared distances to the n - f - 2 nearest others (at
    least one), and among equals by that to all others: two that are each other's nearest have the same score.
    """
    count = len(squared_distance)
    others = squared_distance.clone().fill_diagonal_(math.inf).sort(1).values[:, : count - 1]
    scores = others[:, : max(1, count - f - 2)].sum(1).tolist()
    totals = others.sum(1).tolist()
    return sorted(range(count), key=lambda place: (scores[place], totals[place]))
