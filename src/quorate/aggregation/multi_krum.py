"""Multi-Krum: the mean of the m vectors with the nearest neighbours.

Idea: Scores as in Krum; the m vectors with the smallest scores are averaged. With m = 1 it is Krum.

Cost: As Krum.

When it loses: As Krum, with less noise: at least m - f honest gradients are in the mean.

Paper: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
descent", NeurIPS 2017, section 4 (m-Krum).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quorate.aggregation import register
from quorate.aggregation.distances import by_krum, squared_distances
from quorate.aggregation.rule import Rule
from quorate.core.codec import Draw
from quorate.core.errors import ConfigurationError


@register("multi-krum")
@dataclass(frozen=True, kw_only=True)
class MultiKrum(Rule):
    """The mean of the m vectors with the smallest scores of Krum."""

    m: int | None = None
    """Number of vectors that are averaged, from 1 to n - f - 2. By default n - f - 2."""

    breakdown: ClassVar[str] = "f of at least 2 f + 3 vectors"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m is not None and self.m < 1:
            raise ConfigurationError(f"m is {self.m}; it must be a count of vectors (at least 1)")

    @property
    def least(self) -> int:
        return max(2 * self.f + 3 if self.f else 1, 0 if self.m is None else self.m + self.f + 2)

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        count = len(gram)
        many = max(1, count - self.f - 2) if self.m is None else min(self.m, count)
        weights = torch.zeros(1, count, dtype=torch.float64)
        weights[0, by_krum(squared_distances(gram), self.f)[:many]] = 1 / many
        return weights
