"""Any graph, from a file: one edge a line, `0 1` both ways or `0 -> 1` one way; what follows a # is left out."""

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
    """The graph in a file of edges: with Metropolis weights if all lead both ways, else with equal shares."""

    path: str
    """Of the file."""

    @property
    def directed(self) -> bool:
        """Whether some line has an arrow."""
        return self._edges.one_way

    @property
    def is_balanced(self) -> bool:
        """Whether rows of W add up to 1: where none of the edges leads one way only."""
        return not self.directed

    @cached_property
    def _edges(self) -> _Edges:
        return _read(self.path)

    @cached_property
    def _graph(self) -> Undirected | Directed:
        edges = self._edges
        return _OneWay(edges=edges) if edges.one_way else _BothWays(edges=edges)

    def check(self, size: int) -> None:
        """Raise `ConfigurationError` for ranks that are not there, and where there is no way from one to another."""
        edges = self._edges
        if edges.greatest >= size:
            raise ConfigurationError(f"{self.path} names rank {edges.greatest}, and there are {size} workers")
        for turned in (False, True):
            seen, front = {0}, [0]
            while front:
                front = [b for a in front for b in edges.of(a, turned=turned) if b not in seen and not seen.add(b)]  # type: ignore[func-returns-value]
            if len(seen) < size:
                alone = min(set(range(size)) - seen)
                raise ConfigurationError(f"in {self.path} there is no path between rank 0 and rank {alone}")

    def cycle(self, size: int) -> int:
        """Every round is like the one before."""
        return 1

    def out_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self._graph.out_edges(rank, size, round)

    def in_edges(self, rank: int, size: int, round: int) -> tuple[Edge, ...]:
        return self._graph.in_edges(rank, size, round)


class _Edges:
    """What the file says: whom each one reaches, and who reaches it."""

    def __init__(self, pairs: set[tuple[int, int]]) -> None:
        self.one_way = any((b, a) not in pairs for a, b in pairs)
        self.greatest = max((max(pair) for pair in pairs), default=0)
        self._reached: dict[int, set[int]] = {}
        self._reaching: dict[int, set[int]] = {}
        for a, b in pairs:
            self._reached.setdefault(a, set()).add(b)
            self._reaching.setdefault(b, set()).add(a)

    def of(self, rank: int, *, turned: bool = False) -> frozenset[int]:
        """Whom `rank` reaches; turned: who reaches it."""
        return frozenset((self._reaching if turned else self._reached).get(rank, ()))


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
        return self.edges.of(rank, turned=True)


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
        found = _LINE.fullmatch(words)
        if found is None:
            raise ConfigurationError(f"line {number} of {path} is {words!r}; an edge is two ranks, 0 1 or 0 -> 1")
        a, b = int(found["a"]), int(found["b"])
        if a == b:
            raise ConfigurationError(
                f"line {number} of {path} leads from rank {a} to itself; each worker keeps a share anyway"
            )
        pairs.add((a, b))
        if found["arrow"] != "->":
            pairs.add((b, a))
        if len(pairs) > _MOST_EDGES:
            raise ConfigurationError(f"{path} has more than {_MOST_EDGES} edges")
    return _Edges(pairs)
