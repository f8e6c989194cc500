"""Hosts first: an exact mean inside each host, then a ring among hosts, in turn."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.gossip.topology import register
from quorate.gossip.topology.edges import Undirected


@register("hierarchical")
@dataclass(frozen=True, kw_only=True)
class Hierarchical(Undirected):
    """All workers of a host in one round; in the next, a ring of the workers with the same place on their hosts."""

    per_host: int = 4
    """Workers of one host, whose ranks follow each other; the last host may have fewer."""

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
