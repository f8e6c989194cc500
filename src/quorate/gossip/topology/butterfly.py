"""Groups that interleave as the stages of a butterfly: a few rounds of means in groups are a mean of all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.gossip.topology import register
from quorate.gossip.topology.edges import Undirected


@register("butterfly")
@dataclass(frozen=True, kw_only=True)
class Butterfly(Undirected):
    """Everyone with a whole group: ranks that differ in one digit, the last in one round, the next in the one after.

    Digits are those of the rank to the base of the group's size S. If the number of workers is a power of S, log P /
    log S rounds are the exact mean. Elsewhere the last groups have fewer members, numbers come nearer to the mean, and
    what one worker knows is everywhere after twice as many rounds at most.
    """

    group_size: int = 2
    """Workers of a group; the last ones may have fewer."""

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ConfigurationError(f"group_size is {self.group_size}; it must be at least 2")

    def cycle(self, size: int) -> int:
        """As many rounds as the greatest rank has digits."""
        rounds = 1
        while self.group_size**rounds < size:
            rounds += 1
        return rounds

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        stride = self.group_size ** (round % self.cycle(size))
        first = rank - rank // stride % self.group_size * stride
        return frozenset(range(first, min(size, first + self.group_size * stride), stride)) - {rank}


def group_size_near_root(size: int) -> int:
    """The power of two nearest to the square root of `size` as a ratio (the larger of two that are equally near: 8 of
    32), at least 2."""
    return max(2, 1 << math.floor(math.log2(size) / 2 + 0.5))
