"""The geometric median: the point with the smallest sum of distances to all vectors.

Idea: Weiszfeld's iteration, smoothed: each vector gets the weight one over its distance from the current point, and the
weighted mean is the next point. The iteration starts at the mean of the vectors in the smallest ball, centred at one of
them, that holds more than half of all. A distance counts as at least `smallest` times the radius of this ball. The
weights follow from inner products alone, so vectors are read once, whatever the number of iterations. Wrong vectors
cannot move the ball far from the others.

Cost: n^2 d products for the inner products, one pass for the weighted mean; n^2 numbers summed among workers.

When it loses: Where nearly half of the vectors are wrong and agree. The result depends on all distances: one honest
vector far away moves it less than it moves the mean, but more than it moves a coordinate-wise median.

Paper: Pillutla, Kakade and Harchaoui, "Robust aggregation for federated learning", IEEE Transactions on Signal
Processing 2022 (arXiv 1912.13445), Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.aggregation import register
from quorate.aggregation.distances import squared_distances
from quorate.aggregation.rule import Rule
from quorate.core.codec import Draw
from quorate.core.errors import ConfigurationError

Numbers = NDArray[np.float64]
_TINY = 1e-150


@register("geometric-median")
@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Rule):
    """The point with the smallest sum of distances, by the smoothed iteration of Weiszfeld."""

    iterations: int = 64
    """Number of iterations."""
    smallest: float = 1e-6
    """Lower bound of distances, as a share of the radius of the ball that contains more than half of the vectors."""

    breakdown: ClassVar[str] = "f below half of the vectors"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1 or not self.smallest > 0:
            raise ConfigurationError(
                f"iterations is {self.iterations} and smallest {self.smallest}; they must be from 1 on, and above 0"
            )

    @property
    def least(self) -> int:
        return 2 * self.f + 1

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        distances, products = squared_distances(gram).sqrt().numpy(), gram.numpy()
        radii = np.sort(distances, 1)[:, len(products) // 2]
        middle = int(radii.argmin())
        radius = float(radii[middle])
        floor = max(self.smallest * radius, _TINY)
        weights = (distances[middle] <= radius).astype(np.float64)
        weights /= weights.sum()
        for _ in range(self.iterations if radius > 0 else 0):  # else more than half are equal, and that is the median
            weights = 1 / np.maximum(np.sqrt(from_mixed(products, weights)), floor)
            weights /= weights.sum()
        return torch.from_numpy(weights[None, :])


def from_mixed(gram: Numbers, weights: Numbers) -> Numbers:
    """Return squared distances (n) of vectors from their sum weighted by `weights` (n). NumPy is several times as fast
    as torch for so few numbers."""
    products = gram @ weights
    distances: Numbers = np.maximum(gram.diagonal() - 2 * products + weights @ products, 0.0)
    return distances
