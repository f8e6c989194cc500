"""MoNNA: the mean of the n - f vectors nearest to a trusted one.

Idea: The aggregating worker trusts its own vector, and averages it with the others nearest to it, n - f in all. If one
result is formed for all workers, the trusted vector is that of the first worker.

Cost: n^2 d products for distances, one pass for the mean.

When it loses: Where the trusted vector is wrong: then the result is wrong, too, for all workers.

Paper: Farhadkhani, Guerraoui, Gupta, Hoang, Pinot and Stephan, "Robust collaborative learning with linear gradient
overhead", ICML 2023, Algorithm 1 (nearest-neighbour averaging).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quorate.aggregation import register
from quorate.aggregation.distances import squared_distances
from quorate.aggregation.rule import Rule
from quorate.core.codec import Draw


@register("monna")
@dataclass(frozen=True, kw_only=True)
class MoNNA(Rule):
    """The mean of the n - f vectors nearest to the first one, which is trusted."""

    breakdown: ClassVar[str] = "f below half of the vectors, and never the first"

    @property
    def least(self) -> int:
        return 2 * self.f + 1

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        count = len(gram)
        nearest = squared_distances(gram)[0].argsort(stable=True)[: max(1, count - self.f)]
        weights = torch.zeros(1, count, dtype=torch.float64)
        weights[0, nearest] = 1 / len(nearest)
        return weights
