"""Graphs of groups of workers that change from round to round: hosts and a ring among them, stages of a butterfly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.gossip.topology import register
from quorate.gossip.topology.edges import Undirected


@register("hierarchical")
@dataclass(frozen=True, kw_only=True)
class Hierarchical(Undirected):
    """All workers of a host in one round; in the next, a ring of the workers with the same place on their hosts."""

    per_host: int = 4
    """Number of workers per host, with consecutive ranks; the last host may have fewer."""

    def __post_init__(self) -> None:
        if self.per_host < 1:
            raise ConfigurationError(f"per_host is {self.per_host}; it must be at least 1")

    def cycle(self, size: int) -> int:
        return 2 if size > self.per_host else 1

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        host, place = divmod(rank, self.per_host)
        if round % self.cycle(size) == 0:
            first = host * self.per_host
            return frozenset(range(first, min(first + self.per_host, size))) - {rank}
        hosts = len(range(place, size, self.per_host))  # hosts that have a worker at this place
        return frozenset(((host + hop) % hosts) * self.per_host + place for hop in (-1, 1)) - {rank}


@register("butterfly")
@dataclass(frozen=True, kw_only=True)
class Butterfly(Undirected):
    """Groups of ranks that differ in one digit, each a complete graph; the digit moves on from round to round.

    Digits are those of the rank to the base of the group's size S. If the number of workers is a power of S, log P /
    log S rounds give the exact mean. Otherwise the last groups have fewer members, and rounds only approach the mean.
    The numbers of one worker then reach all others within twice as many rounds.
    """

    group_size: int = 2
    """Number of workers in a group; the last groups may have fewer."""

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ConfigurationError(f"group_size is {self.group_size}; it must be at least 2")

    def cycle(self, size: int) -> int:
        """Return the number of digits of the greatest rank: one round for each."""
        rounds = 1
        while self.group_size**rounds < size:
            rounds += 1
        return rounds

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        stride = self.group_size ** (round % self.cycle(size))
        first = rank - rank // stride % self.group_size * stride
        return frozenset(range(first, min(size, first + self.group_size * stride), stride)) - {rank}


def group_size_near_root(size: int) -> int:
    """Return the power of two whose ratio to the square root of `size` is nearest to 1, at least 2.

    Of two that are equally near it is the larger: 8 for a size of 32.
    """
    return max(2, 1 << math.floor(math.log2(size) / 2 + 0.5))
