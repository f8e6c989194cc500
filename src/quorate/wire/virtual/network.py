"""The cost of the virtual network: seconds for each message and each collective.

Notation: P workers, n bytes per worker (of a ragged collective: as stated), latency L and bandwidth B of the slowest
link that takes part. Collectives are rings, as in gloo and NCCL for large tensors. `queues` models the delays of
collectives that are under way together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quorate.core.errors import ConfigurationError

Way = tuple[int, int]
"""One direction between two workers: sender and receiver."""


@dataclass(frozen=True)
class Link:
    """One direction of a connection between two workers."""

    latency: float = 50e-6
    """Seconds from the last byte sent to the last byte received."""
    bandwidth: float = 1.25e9
    """Bytes per second (1.25e9: ten gigabit per second)."""

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and math.isfinite(self.latency)):
            raise ConfigurationError(
                f"the latency of a link must be a number of seconds (at least 0), not {self.latency!r}"
            )
        if not self.bandwidth > 0:
            raise ConfigurationError(f"the bandwidth of a link is in bytes per second, above 0, not {self.bandwidth!r}")

    def transmission(self, nbytes: float) -> float:
        """Return the seconds for which `nbytes` keep the link busy: n / B."""
        return nbytes / self.bandwidth


SHARED_MEMORY = Link(latency=2e-6, bandwidth=math.inf)
"""The link between workers of one host: for large tensors only their place is sent."""


@dataclass(frozen=True)
class Network:
    """A link between every two workers: all equal, but for those named in `links`.

    `links[a, b]` is the link from a to b, and also from b to a unless there is `links[b, a]`.

    `hosts` has the number of the host of each rank (a rank beyond them is on a host of its own). Workers of one host
    are joined by `SHARED_MEMORY`, and all bytes that a host sends to others, or receives from them, share its one port
    of `bandwidth`, in each direction.
    """

    latency: float = 50e-6
    bandwidth: float = 1.25e9
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    hosts: Sequence[int] = ()
    _usual: Link = field(init=False, repr=False, compare=False)
    _lowest: Sequence[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_usual", Link(self.latency, self.bandwidth))
        object.__setattr__(self, "_lowest", [list(self.hosts).index(host) for host in self.hosts])

    def host_of(self, rank: int) -> int:
        """Return the lowest rank on the host of `rank`; 0 for all where there are no hosts."""
        if not self.hosts:
            return 0
        return self._lowest[rank] if rank < len(self._lowest) else rank

    def link(self, source: int, target: int) -> Link:
        """Return the link from `source` to `target`."""
        named = self.links.get((source, target)) or self.links.get((target, source)) if self.links else None
        if named is None and self.hosts and self.host_of(source) == self.host_of(target):
            return SHARED_MEMORY
        return named or self._usual

    def ring(self, size: int) -> Link:
        """Return the slowest latency and bandwidth on the ring 0 -> 1 -> ... -> 0."""
        return self._slowest(_ring(size))

    def star(self, root: int, size: int, *, inwards: bool = True) -> Link:
        """Return the slowest latency and bandwidth of the links from all others to `root`, or from it."""
        return self._slowest(_star(root, size, inwards=inwards))

    def mesh(self, size: int) -> Link:
        """Return the slowest latency and bandwidth of all links of workers 0 to `size` - 1."""
        named = [pair for pair in self.links if max(pair) < size]
        if self.hosts:
            return self._slowest(_mesh(size))
        slowest = self._slowest(named)
        is_every_link_named = size * (size - 1) <= len({p for a, b in named for p in ((a, b), (b, a)) if a != b})
        return slowest if is_every_link_named else _slower(slowest, self._usual)

    def _slowest(self, pairs: Iterable[Way]) -> Link:
        if not (self.links or self.hosts):
            return self._usual
        links = [self.link(a, b) for a, b in pairs] or [self._usual]
        return Link(max(link.latency for link in links), min(link.bandwidth for link in links))


def _ring(size: int) -> Iterator[Way]:
    return ((rank, (rank + 1) % size) for rank in range(size))


def _star(root: int, size: int, *, inwards: bool) -> Iterator[Way]:
    return ((rank, root) if inwards else (root, rank) for rank in range(size) if rank != root)


def _mesh(size: int) -> Iterator[Way]:
    return ((a, b) for a in range(size) for b in range(size) if a != b)


def _slower(first: Link, second: Link) -> Link:
    return Link(max(first.latency, second.latency), min(first.bandwidth, second.bandwidth))


@dataclass(frozen=True)
class Demand:
    """The load of one collective on the network."""

    latency: float = 0.0
    """Seconds of a message, times the messages that follow each other."""
    nbytes: float = 0.0
    """Bytes on each of `ways`, as far as they take time."""
    ways: Iterable[Way] = ()
    """The links that it uses; to be iterated once."""
    bandwidth: float = math.inf
    """Bandwidth of the slowest link."""

    @property
    def seconds(self) -> float:
        """Seconds from the call of the last worker until it is done for all, where nothing else is under way."""
        return self.latency + self.nbytes / self.bandwidth


def demand_of(network: Network, operation: str, nbytes: Sequence[int], root: int = 0) -> Demand:
    """Return the load of `operation`, where the input of worker r has `nbytes[r]`. At P = len(nbytes) = 1: none.

    | operation | messages that follow each other | bytes on each link |
    |---|---|---|
    | all-reduce: a reduce-scatter, then an all-gather | 2 (P - 1) | 2 (P - 1) / P n |
    | reduce-scatter | P - 1 | (P - 1) / P n |
    | all-gather | P - 1 | all inputs but the smallest |
    | broadcast and reduce, pipelined in small chunks | P - 1 | n |
    | all-to-all | P - 1 | (P - 1) / P of the largest input |
    | gather, scatter: everything crosses the root's own connection, once | 1 | inputs or results of the others |
    | barrier: dissemination (Hensgen, Finkel and Manber, 1988) | ceil(log2 P) | none |
    """
    size = len(nbytes)
    if size == 1:
        return Demand()
    hops = size - 1
    match operation:
        case "all_reduce":
            return _demand(network.ring(size), 2 * hops, 2 * (nbytes[0] * (size - 1) / size), _ring(size))
        case "reduce_scatter":
            return _demand(network.ring(size), hops, nbytes[0] * (size - 1) / size, _ring(size))
        case "all_gather":
            return _demand(network.ring(size), hops, sum(nbytes) - min(nbytes), _ring(size))
        case "broadcast" | "reduce":
            return _demand(network.ring(size), hops, nbytes[root], _ring(size))
        case "all_to_all":
            return _demand(network.mesh(size), hops, max(nbytes) * (size - 1) / size, _mesh(size))
        case "gather":
            ways = _star(root, size, inwards=True)
            return _demand(network.star(root, size), 1, sum(nbytes) - nbytes[root], ways)
        case "scatter":
            ways = _star(root, size, inwards=False)
            return _demand(network.star(root, size, inwards=False), 1, nbytes[root] * (size - 1) / size, ways)
        case "barrier":
            return _demand(network.mesh(size), math.ceil(math.log2(size)), 0, ())
    raise ValueError(f"no cost is known for {operation!r}")


def _demand(slowest: Link, hops: int, nbytes: float, ways: Iterable[Way]) -> Demand:
    return Demand(hops * slowest.latency, nbytes, ways, slowest.bandwidth)
