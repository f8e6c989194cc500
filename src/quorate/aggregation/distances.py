"""Squared distances between vectors, from their inner products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def squared_distances(gram: Tensor) -> Tensor:
    """(n, n) of (n, n): |x_i - x_j|^2 = x_i.x_i + x_j.x_j - 2 x_i.x_j, never below 0, and 0 on the diagonal.

    What rounding leaves of the distance of equal vectors is 0 as well.
    """
    own = gram.diagonal()
    found = own[:, None] + own[None, :] - (gram + gram.T)  # the same for both, whatever rounding made of the two
    scale = torch.maximum(own[:, None], own[None, :])
    return found.masked_fill(found <= 1e-13 * scale, 0.0).fill_diagonal_(0.0)


def mixed_gram(gram: Tensor, weights: Tensor | None) -> Tensor:
    """The inner products of vectors mixed by `weights` (m, n), from those (n, n) of the vectors."""
    return gram if weights is None else weights @ gram @ weights.T


def chosen(places: Sequence[int], count: int) -> Tensor:
    """The weights (m, n) that choose the vectors at `places` (m) of `count`, each as it is."""
    found = torch.zeros(len(places), count, dtype=torch.float64)
    found[torch.arange(len(places)), torch.tensor(places)] = 1.0
    return found
