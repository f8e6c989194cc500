"""Squared distances between vectors, from their inner products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
