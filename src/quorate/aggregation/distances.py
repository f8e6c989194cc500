"""Squared distances between vectors, from their inner products; scores by distances, and vectors that are far away."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_FAR = 3.0
"""Multiple of the usual distance that is far."""


def squared_distances(gram: Tensor) -> Tensor:
    """Return (n, n) from (n, n): |x_i - x_j|^2 = x_i.x_i + x_j.x_j - 2 x_i.x_j, never below 0, 0 on the diagonal.

    Rounding errors of distances between equal vectors are set to 0 as well.
    """
    own = gram.diagonal()
    distances = own[:, None] + own[None, :] - (gram + gram.T)  # symmetric, whatever the rounding of the two
    scale = torch.maximum(own[:, None], own[None, :])
    return distances.masked_fill(distances <= 1e-13 * scale, 0.0).fill_diagonal_(0.0)


def mixed_gram(gram: Tensor, weights: Tensor | None) -> Tensor:
    """Return the inner products of vectors mixed by `weights` (m, n), from those (n, n) of the vectors."""
    return gram if weights is None else weights @ gram @ weights.T


def chosen(places: Sequence[int], count: int) -> Tensor:
    """Return the weights (m, n) that choose the vectors at `places` (m) of `count`, unchanged."""
    weights = torch.zeros(len(places), count, dtype=torch.float64)
    weights[torch.arange(len(places)), torch.tensor(places)] = 1.0
    return weights


def by_krum(squared_distance: Tensor, f: int) -> list[int]:
    """Return the places of n vectors, best first, by the sum of squared distances to the n - f - 2 nearest others (at
    least one).

    Two vectors that are each other's nearest have the same score; the sum to all others decides between equals.
    """
    count = len(squared_distance)
    others = squared_distance.clone().fill_diagonal_(math.inf).sort(1).values[:, : count - 1]
    scores = others[:, : max(1, count - f - 2)].sum(1).tolist()
    totals = others.sum(1).tolist()
    return sorted(range(count), key=lambda place: (scores[place], totals[place]))


def far_rows(gram: Tensor) -> list[int]:
    """Return the places of the n vectors with inner products `gram` (n, n) whose median distance to the others is
    large.

    Large means more than 3 times the median of these distances. Of fewer than 3 vectors none is returned.
    """
    count = len(gram)
    if count < 3:
        return []
    distances = np.sort(squared_distances(gram).numpy(), 1)  # of each from itself, 0, in front
    usual = np.sqrt(distances[:, 1 + (count - 2) // 2])
    return [int(place) for place in np.flatnonzero(usual > _FAR * np.sort(usual)[(count - 1) // 2])]
