"""What the virtual network costs: seconds for each message and each collective.

Notation: P workers, n bytes per worker (of a ragged collective: as stated), latency L and bandwidth B of the slowest
link that takes part. Collectives are the ring ones, which is what gloo and NCCL use for large tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quorate.core.errors import ConfigurationError


@dataclass(frozen=True)
class Link:
    """One direction of a connection between two workers."""

    latency: float = 50e-6
    """Seconds from the last byte sent to the last byte there."""
    bandwidth: float = 1.25e9
    """Bytes per second (1.25e9: ten gigabit per second)."""

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and math.isfinite(self.latency)):
            raise ConfigurationError(f"the latency of a link is a number of seconds from 0 on, not {self.latency!r}")
        if not self.bandwidth > 0:
            raise ConfigurationError(f"the bandwidth of a link is in bytes per second, above 0, not {self.bandwidth!r}")

    def transmission(self, nbytes: int) -> float:
        """Seconds for which `nbytes` keep the link busy: n / B."""
        return nbytes / self.bandwidth


SHARED_MEMORY = Link(latency=2e-6, bandwidth=math.inf)
"""Between workers of one host: where large tensors lie is all that is told."""


@dataclass(frozen=True)
class Network:
    """A link between every two workers: all alike, but for those named in `links`.

    `links[a, b]` is the way from a to b, and also from b to a unless `links[b, a]` is there.

    With `hosts`, for each rank the number of its host (a rank beyond them is on a host of its own), workers of one host
    are joined by `SHARED_MEMORY`, and all that a host sends to others, or gets from them, shares its one port of
    `bandwidth`, each way.
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
        """The lowest rank on the host of `rank`; 0 for all where no hosts are told apart."""
        if not self.hosts:
            return 0
        return self._lowest[rank] if rank < len(self._lowest) else rank

    def link(self, source: int, target: int) -> Link:
        """The way from `source` to `target`."""
        named = self.links.get((source, target)) or self.links.get((target, source)) if self.links else None
        if named is None and self.hosts and self.host_of(source) == self.host_of(target):
            return SHARED_MEMORY
        return named or self._usual

    def ring(self, size: int) -> Link:
        """The slowest latency and the slowest bandwidth on the ring 0 -> 1 -> ... -> 0."""
        return self._slowest((r, (r + 1) % size) for r in range(size))

    def star(self, root: int, size: int) -> Link:
        """The same among the links between `root` and everyone else."""
        pairs = ((root, r) for r in range(size) if r != root)
        return self._slowest(pair for there in pairs for pair in (there, there[::-1]))

    def mesh(self, size: int) -> Link:
        """The same among all links of workers 0 to `size` - 1."""
        named = [pair for pair in self.links if max(pair) < size]
        if self.hosts:
            return self._slowest((a, b) for a in range(size) for b in range(size) if a != b)
        slowest = self._slowest(named)
        is_every_link_named = size * (size - 1) <= len({p for a, b in named for p in ((a, b), (b, a)) if a != b})
        return slowest if is_every_link_named else _slower(slowest, self._usual)

    def _slowest(self, pairs: Iterable[tuple[int, int]]) -> Link:
        if not (self.links or self.hosts):
            return self._usual
        links = [self.link(a, b) for a, b in pairs] or [self._usual]
        return Link(max(link.latency for link in links), min(link.bandwidth for link in links))


def _slower(one: Link, other: Link) -> Link:
    return Link(max(one.latency, other.latency), min(one.bandwidth, other.bandwidth))


def collective_seconds(network: Network, operation: str, nbytes: Sequence[int], root: int = 0) -> float:
    """Seconds from the arrival of the last of P = len(nbytes) workers until `operation` is done for everyone.

    `nbytes[r]` is what worker r gives. At P = 1 nothing is moved: 0.
    """
    size = len(nbytes)
    if size == 1:
        return 0.0
    match operation:
        case "all_reduce":
            return _all_reduce(network.ring(size), size, nbytes[0])
        case "reduce_scatter":
            return _around(network.ring(size), size, nbytes[0] * (size - 1) / size)
        case "all_gather":
            return _around(network.ring(size), size, sum(nbytes) - min(nbytes))
        case "broadcast" | "reduce":
            return _around(network.ring(size), size, nbytes[root])
        case "all_to_all":
            return _around(network.mesh(size), size, max(nbytes) * (size - 1) / size)
        case "gather":
            return _to_or_from(network.star(root, size), sum(nbytes) - nbytes[root])
        case "scatter":
            return _to_or_from(network.star(root, size), nbytes[root] * (size - 1) / size)
        case "barrier":
            return _barrier(network.mesh(size), size)
    raise ValueError(f"no cost is known for {operation!r}")


def _all_reduce(link: Link, size: int, nbytes: int) -> float:
    """A reduce-scatter, then an all-gather: 2 (P - 1) L + 2 (P - 1) / P * n / B."""
    return 2 * _around(link, size, nbytes * (size - 1) / size)


def _around(link: Link, size: int, nbytes: float) -> float:
    """P - 1 hops, in which each link carries `nbytes` in all: (P - 1) L + nbytes / B.

    For reduce-scatter nbytes is n (P - 1) / P; for all-gather, what all gave but the smallest piece; for broadcast
    and reduce, pipelined in small chunks, n; for all-to-all, what the busiest worker sends to others.
    """
    return (size - 1) * link.latency + nbytes / link.bandwidth


def _to_or_from(link: Link, nbytes: float) -> float:
    """Everything crosses the root's own connection, once: L + nbytes / B."""
    return link.latency + nbytes / link.bandwidth


def _barrier(link: Link, size: int) -> float:
    """Dissemination (Hensgen, Finkel and Manber, 1988): ceil(log2 P) L."""
    return math.ceil(math.log2(size)) * link.latency
