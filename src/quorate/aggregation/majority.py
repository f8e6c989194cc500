"""Majority vote: the vector that more than half have sent, bit for bit.

Idea: If several workers compute the same batch, honest ones send equal vectors, and the vector of the majority is
right. Nothing is averaged, so the result has the bits of an honest vector.

Cost: n^2 d products for distances.

When it loses: Where honest workers do not compute bitwise the same: different batches, random numbers, or devices. Then
there is no majority, and an error says so.

Paper: Chen, Wang, Charles and Papailiopoulos, "DRACO: Byzantine-resilient distributed training via redundant
gradients", ICML 2018, section 4 (repetition code). The votes are counted, because one pass of Boyer and Moore's
algorithm names a candidate even if there is no majority.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from quorate.aggregation import register
from quorate.aggregation.distances import chosen, squared_distances
from quorate.aggregation.rule import Rule
from quorate.core.codec import Draw
from quorate.core.errors import Mismatch


@register("majority")
@dataclass(frozen=True, kw_only=True)
class Majority(Rule):
    """The vector that more than half of the workers have sent."""

    breakdown: ClassVar[str] = "f below half of the vectors"
    compares_bits: ClassVar[bool] = True

    @property
    def least(self) -> int:
        return 2 * self.f + 1

    def mixing(self, gram: Tensor, draw: Draw) -> Tensor | None:
        alike = (squared_distances(gram) == 0).sum(1)
        best = int(alike.argmax())
        if 2 * int(alike[best]) <= len(gram):
            raise Mismatch(f"no vector was sent by more than half: at most {int(alike[best])} of {len(gram)} are equal")
        return chosen([best], len(gram))
