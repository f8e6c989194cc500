"""The trimmed mean of each coordinate.

Idea: In each coordinate the f largest and the f smallest numbers are left out, and the others averaged. With f = 0 it
is the mean.

Cost: One sort of n numbers for each of d coordinates; the bytes of an all-reduce among P workers.

When it loses: Where workers have unlike data: honest numbers are left out as well. Small wrong values in every
coordinate, within the range of the honest ones, get through ("a little is enough").

Paper: Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates",
ICML 2018, Definition 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quorate.aggregation import register
from quorate.aggregation.rule import Rule


@register("trimmed-mean")
@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Rule):
    """The mean of each coordinate without the f largest and f smallest numbers."""

    breakdown: ClassVar[str] = "f below half of the vectors"
    is_exact: ClassVar[bool] = False

    @property
    def least(self) -> int:
        return 2 * self.f + 1

    def middle(self, count: int) -> tuple[int, int]:
        return self.f, count - self.f
