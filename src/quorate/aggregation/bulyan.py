"""Bulyan: repeated Krum, then a trimmed mean around the median.

Idea: Krum chooses a vector and sets it aside, then chooses among the remaining ones, until n - 2 f are chosen. In
each coordinate the mean is formed of the n - 4 f numbers of these that are nearest to the median. So a vector that is
near the others as a whole cannot be far from them in one coordinate.

Cost: As Krum (distances are computed once), and a sort of n - 2 f numbers for each coordinate.

When it loses: It needs 4 f + 3 vectors. Where workers have unlike data, as Krum.

Paper: El Mhamdi, Guerraoui and Rouault, "The hidden vulnerability of distributed learning in Byzantium", ICML 2018,
section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quorate.aggregation import register
from quorate.aggregation.distances import by_krum, chosen, squared_distances
from quorate.aggregation.median import middle
from quorate.aggregation.ordering import mean_in_order
from quorate.aggregation.rows import matrix
from quorate.aggregation.rule import Rule
from quorate.core.codec import Draw


@register("bulyan")
@dataclass(frozen=True, kw_only=True)
class Bulyan(Rule):
    """The mean of the n - 4 f numbers nearest to the median of n - 2 f vectors that Krum has chosen."""

    breakdown: ClassVar[str] = "f of at least 4 f + 3 vectors"

    @property
    def least(self) -> int:
        return 4 * self.f + 3 if self.f else 1

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        distances, left = squared_distances(gram), list(range(len(gram)))
        chosen_places = []
        for _ in range(len(gram) - 2 * self.f):
            best = by_krum(distances[left][:, left], self.f)[0]
            chosen_places.append(left.pop(best))
        return chosen(sorted(chosen_places), len(gram))

    def combine(self, rows: Sequence[Tensor], into: Tensor) -> None:
        many = max(1, len(rows) - 2 * self.f)
        mean_in_order(rows, *middle(len(rows)), into)
        some = matrix(rows)
        nearest = (some - into).abs().argsort(dim=0, stable=True)[:many]
        torch.mean(some.gather(0, nearest), 0, out=into)
