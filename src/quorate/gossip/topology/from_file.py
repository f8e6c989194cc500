"""Any graph, from a file: one edge a line, `0 1` both ways or `0 -> 1` one way; text after a # is ignored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from quorate.core.errors import ConfigurationError
from quorate.core.text_files import text_of
from quorate.core.topology import Edge
from quorate.gossip.topology import register
from quorate.gossip.topology.edges import Directed, Undirected

_LINE = re.compile(r"(?P<a>\d+)\s*(?P<arrow>->|--|,|\s)\s*(?P<b>\d+)")
_MOST_EDGES = 1_000_000


@register("file")
@dataclass(frozen=True, kw_only=True)
class FromFile:
    """A graph from a file of edges; Metropolis weights if all edges lead both ways, otherwise equal shares."""

    path: str
    """File of edges."""

    @property
    def directed(self) -> bool:
        """Whether some edge leads one way only."""
        return self._edges.is_one_way

    @property
    def is_balanced(self) -> bool:
        """Whether rows of W add up to 1: if no edge leads one way only."""
        return not self.directed

    @cached_property
    def _edges(self) -> _Edges:
        return _read(self.path)

    @cached_property
    def _graph(self) -> Undirected | Directed:
        edges = self._edges
        return _OneWay(edges=edges) if edges.is_one_way else _BothWays(edges=edges)

    def check(self, size: int) -> None:
        """Raise `ConfigurationError` for a rank of at least `size`, and if the graph is not strongly connected."""
        edges = self._edges
        if edges.greatest >= size:
            raise ConfigurationError(f"{self.path} names rank {edges.greatest}, and there are {size} workers")
        for reverse in (False, True):
            seen, front = {0}, [0]
            while front:
                front = [b for a in front for b in edges.of(a, reverse=reverse) if b not in seen and not seen.add(b)]  # type: ignore[func-returns-value]
            if len(seen) < size:
                alone = min(set(range(size)) - seen)
                raise ConfigurationError(f"in {self.path} there is no path between rank 0 and rank {alone}")

    def cycle(self, size: int) -> int:
        """Return 1: every round has the same edges."""
        return 1

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self._graph.out_edges(rank, size, round)

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self._graph.in_edges(rank, size, round)


class _Edges:
    """Edges of a file, by rank: the ranks that it sends to, and the ranks that send to it."""

    def __init__(self, pairs: set[tuple[int, int]]) -> None:
        self.is_one_way = any((b, a) not in pairs for a, b in pairs)
        self.greatest = max((max(pair) for pair in pairs), default=0)
        self._reached: dict[int, set[int]] = {}
        self._reaching: dict[int, set[int]] = {}
        for a, b in pairs:
            self._reached.setdefault(a, set()).add(b)
            self._reaching.setdefault(b, set()).add(a)

    def of(self, rank: int, *, reverse: bool = False) -> frozenset[int]:
        """Return the ranks that `rank` sends to, or with `reverse` those that send to it."""
        return frozenset((self._reaching if reverse else self._reached).get(rank, ()))


@dataclass(frozen=True, kw_only=True)
class _BothWays(Undirected):
    edges: _Edges

    def neighbours(self, rank: int, size: int, round: int) -> frozenset[int]:
        return self.edges.of(rank)


@dataclass(frozen=True, kw_only=True)
class _OneWay(Directed):
    edges: _Edges

    def reached(self, rank: int, size: int, round: int) -> frozenset[int]:
        return self.edges.of(rank)

    def reaching(self, rank: int, size: int, round: int) -> frozenset[int]:
        return self.edges.of(rank, reverse=True)


@lru_cache(maxsize=16)
def _read(path: str) -> _Edges:
    try:
        text = text_of(Path(path), "the topology file")
    except FileNotFoundError:
        raise ConfigurationError(f"the topology file {path} cannot be read: there is none") from None
    pairs: set[tuple[int, int]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = _LINE.fullmatch(words)
        if match is None:
            raise ConfigurationError(f"line {number} of {path} is {words!r}; an edge is two ranks, 0 1 or 0 -> 1")
        a, b = int(match["a"]), int(match["b"])
        if a == b:
            raise ConfigurationError(
                f"line {number} of {path} leads from rank {a} to itself; each worker keeps a share anyway"
            )
        pairs.add((a, b))
        if match["arrow"] != "->":
            pairs.add((b, a))
        if len(pairs) > _MOST_EDGES:
            raise ConfigurationError(f"{path} has more than {_MOST_EDGES} edges")
    return _Edges(pairs)
