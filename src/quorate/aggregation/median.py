"""The median of each coordinate.

Idea: In each coordinate the middle of the numbers sent; for an even count the mean of the two in the middle. Wrong
vectors, if fewer than half, cannot move it beyond the numbers that the others have sent.

Cost: One sort of n numbers for each of d coordinates. It works on pieces of vectors, so among P workers it costs the
bytes of an all-reduce.

When it loses: Where workers have unlike data, or coordinates are skewed: the median of honest vectors then differs from
their mean, even without a wrong vector. Its variance does not fall with the number of workers as that of a mean does.

Paper: Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates",
ICML 2018, Definition 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quorate.aggregation import register
from quorate.aggregation.rule import Rule


@register("median")
@dataclass(frozen=True, kw_only=True)
class Median(Rule):
    """The median of each coordinate; fewer than half of the vectors may be wrong."""

    breakdown: ClassVar[str] = "f below half of the vectors"
    is_exact: ClassVar[bool] = False

    @property
    def least(self) -> int:
        return 2 * self.f + 1

    def middle(self, count: int) -> tuple[int, int]:
        return middle(count)


def middle(count: int) -> tuple[int, int]:
    """Return the range of the one or two middle places of `count` numbers in order."""
    return (count - 1) // 2, count // 2 + 1
