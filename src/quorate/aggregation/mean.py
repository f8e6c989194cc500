"""The mean: every vector has the same weight, and one wrong vector can move it anywhere.

Idea: The mean that an all-reduce computes, as a rule beside the others. If no vector is wrong it has the smallest
variance, and the other rules are compared with it.

Cost: One pass over n d numbers.

When it loses: With a single wrong vector. It tolerates none: f is 0.

Paper: none of its own; that no linear rule tolerates a wrong vector is Lemma 1 of Blanchard, El Mhamdi, Guerraoui and
Stainer, "Machine learning with adversaries: Byzantine tolerant gradient descent", NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quorate.aggregation import register
from quorate.aggregation.rule import Rule


@register("mean")
@dataclass(frozen=True, kw_only=True)
class Mean(Rule):
    """The mean of all vectors; it tolerates no wrong vector."""

    f: int = 0

    breakdown: ClassVar[str] = "no wrong vector"

    @property
    def least(self) -> int:
        return 1 if self.f == 0 else 1 << 62
