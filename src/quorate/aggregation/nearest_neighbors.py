"""Nearest-neighbour mixing: each vector is replaced by the mean of its neighbours before a rule is applied.

Idea: Each vector is replaced by the mean of the n - f vectors nearest to it, including itself; then a rule is applied
to the n means. This brings honest vectors of workers with unlike data near each other, and the rule's error reaches the
smallest order that any rule can have.

Cost: n^2 d products for distances, one product of an n x n matrix with the vectors, and the rule's own cost.

When it loses: Where data is alike and f is 0, it is the mean at a higher cost.

Paper: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Fixing by mixing: a recipe for optimal Byzantine ML
under heterogeneity", AISTATS 2023, Algorithm 2 (NNM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from quorate.aggregation import register
from quorate.aggregation.distances import mixed_gram, squared_distances
from quorate.aggregation.wrapped import Wrapping
from quorate.core.codec import Draw


@register("nearest-neighbors")
@dataclass(frozen=True, kw_only=True)
class NearestNeighbors(Wrapping):
    """A rule on the means of each vector's n - f nearest neighbours."""

    rule: str = "trimmed-mean"

    breakdown: ClassVar[str] = "f below half of the vectors, and as its rule does"

    @property
    def least(self) -> int:
        return max(2 * self.f + 1, self.inner.least)

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        nearest = squared_distances(gram).argsort(dim=1, stable=True)[:, : max(1, len(gram) - self.f)]
        weights = gram.new_zeros(gram.shape).scatter_(1, nearest, 1 / nearest.shape[1])
        return self.behind(weights, self.inner.mixing(mixed_gram(gram, weights), draw))
