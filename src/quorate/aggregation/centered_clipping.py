"""Centered clipping: each vector's distance from the newest result counts only up to a radius.

Idea: Each vector x pulls the newest result v by (x - v) min(1, tau / |x - v|), and v moves by the mean of these pulls,
a few times in a row. A wrong vector pulls by at most tau / n, whatever it is. With worker momentum the vectors of
honest workers are near each other, and attacks that are small in each step do not accumulate unseen.

Cost: n^2 d products for inner products, one pass for the weighted mean. Memory for the newest result, of which each of
P workers keeps its piece: d / P numbers.

When it loses: With a wrong radius: a small one follows slowly, a large one lets wrong vectors pull. Without worker
momentum it is weak against attacks that last many steps. There are attacks designed against it (Ozfatura et al. 2023).

Paper: Karimireddy, He and Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from quorate.aggregation import register
from quorate.aggregation.geometric_median import from_mixed
from quorate.aggregation.rule import Rule
from quorate.core.codec import Draw
from quorate.core.errors import ConfigurationError


@register("centered-clipping")
@dataclass(frozen=True, kw_only=True)
class CenteredClipping(Rule):
    """The mean of differences from the latest result, clipped to a radius."""

    tau: float | None = None
    """Clipping radius. By default the median distance of the vectors from the latest result, computed in each
    iteration."""
    iterations: int = 3
    """Number of iterations."""

    breakdown: ClassVar[str] = "f below half of the vectors"
    is_exact: ClassVar[bool] = False
    has_centre: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1 or (self.tau is not None and not self.tau > 0):
            raise ConfigurationError(
                f"tau is {self.tau} and iterations {self.iterations}; they must be above 0 (or None), and from 1 on"
            )

    @property
    def least(self) -> int:
        return 2 * self.f + 1

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        count, products = len(gram), gram.numpy()
        v = np.zeros(count)  # the result is the sum of so much of each vector, from the centre
        for _ in range(self.iterations):
            distances = np.sqrt(from_mixed(products, v))
            radius = float(np.sort(distances)[(count - 1) // 2]) if self.tau is None else self.tau
            pulls = np.where(distances > radius, radius / np.maximum(distances, 1e-300), 1.0)
            v = v + (pulls - pulls.sum() * v) / count
        return torch.from_numpy(v[None, :])
