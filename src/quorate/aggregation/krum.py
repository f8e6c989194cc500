"""Krum: the one vector with the nearest neighbours.

Idea: Each vector's score is the sum of its squared distances to its n - f - 2 nearest neighbours. The result is the
vector with the smallest score, unchanged.

Cost: n^2 d products for distances; n^2 numbers summed among workers, and the bytes of an all-reduce.

When it loses: It uses one of n gradients, so it is as noisy as a single worker. Where workers have unlike data it
chooses the same worker again and again. In high dimensions small wrong values in each coordinate get through.

Paper: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
descent", NeurIPS 2017, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from quorate.aggregation import register
from quorate.aggregation.distances import by_krum, chosen, squared_distances
from quorate.aggregation.rule import Rule
from quorate.core.codec import Draw


@register("krum")
@dataclass(frozen=True, kw_only=True)
class Krum(Rule):
    """The vector with the smallest squared distances to its n - f - 2 nearest neighbours."""

    breakdown: ClassVar[str] = "f of at least 2 f + 3 vectors"

    @property
    def least(self) -> int:
        return 2 * self.f + 3 if self.f else 1

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        return chosen(by_krum(squared_distances(gram), self.f)[:1], len(gram))
