"""The mean: every vector counts alike, and one wrong one can move it anywhere.

Idea: What all-reduce forms, as a rule beside the others: where nobody is wrong it has the least variance, and is what
others are held against.

Cost: One pass over n d numbers.

When it loses: With a single wrong vector. It takes none: f is 0.

Paper: none of its own; that no linear rule takes a wrong vector is Lemma 1 of Blanchard, El Mhamdi, Guerraoui and
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
