"""The links between simulated workers: the seconds of messages and means. Pure.

Notation: P workers, n bytes, latency L, bandwidth B. A worker with a port of its own is a host of its own. A message
takes L + n / B. As a ring, a mean of all takes 2 (P - 1) L + 2 (P - 1) / P n / B. By recursive halving and doubling
(Rabenseifner) it takes 2 ceil(log2 P) L and the same for the bytes. Where workers share the ports of hosts, P is the
number of hosts. Concurrent exchanges share the links, as in the virtual world: see `in_line`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from quorate.core.errors import ConfigurationError
from quorate.core.quantities import bytes_per_second_from, seconds_from
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.virtual.network import Network, demand_of

USUAL = "50us:10Gbit"
"""The default."""
_FORM = (
    "LATENCY:BANDWIDTH, such as 50us:10Gbit, and after it :mesh, :halving, :per-host=8 (workers on each host) and "
    ":leader=200us (of work with each worker in a round), or some of these"
)
_HUB_BYTES = 1 << 18
"""The same as in `rounds.forming`, which is slower to import: most bytes of a round that the leader sums itself."""
_NUMBERS = ("per-host", "leader")
FIRST_PART, PART = 1 << 20, 8 << 20
"""Bytes of the parts in which a gradient is sent during the backward pass, as in `buckets.flat`."""


class Taken(NamedTuple):
    """Seconds of one exchange among all, from the last arrival on."""

    latency: float = 0.0
    """Latency of its messages."""
    transmission: float = 0.0
    """Seconds for which it keeps its links busy."""

    @property
    def seconds(self) -> float:
        """Seconds of the exchange alone."""
        return self.latency + self.transmission


def in_line(exchanges: Iterable[tuple[float, Taken]]) -> float:
    """Return when all exchanges have ended, each of which may begin at the time before it. The links transmit one
    exchange after the other, in this order; latencies run in parallel."""
    free = done = 0.0
    for begin, taken in exchanges:
        free = max(free, begin) + taken.transmission
        done = max(done, free + taken.latency)
    return done


@dataclass(frozen=True, kw_only=True)
class Links:
    """One network. `text` is the line that was read."""

    text: str
    latency: float
    bandwidth: float
    """Bytes per second."""
    is_mesh: bool = False
    """Whether every two workers have a link of their own, as in the virtual world. Otherwise each worker has one
    port for everything that it sends, and another for everything that it receives."""
    reduces: Literal["ring", "halving"] = "ring"
    per_host: int = 0
    """Workers of each host, which share its port and are connected by memory; 0: all are on one host, or in a mesh."""
    leader: float = 0.0
    """Seconds of work of the leader for each worker in a round."""
    inside_latency: float = 0.0
    """Latency between workers of a host that is one of several."""
    inside_bandwidth: float = math.inf
    """Bandwidth of a worker to others on such a host."""

    def ports(self, size: int) -> int:
        """Return the ports of `size` workers: one each, or one a host."""
        return -(-size // self.per_host) if self.per_host else size

    def all_reduce(self, nbytes: int, size: int) -> Taken:
        """Return the seconds until all `size` workers have a sum of `nbytes`: between hosts, of the sums of each."""
        inside = self._inside(nbytes, size)
        size = self.ports(size)
        if self.reduces == "ring" or size == 1:
            network = Network(latency=self.latency, bandwidth=self.bandwidth)
            demand = demand_of(network, "all_reduce", (nbytes,) * size)
            between = Taken(demand.latency, demand.nbytes / demand.bandwidth)
        else:
            hops = 2 * math.ceil(math.log2(size))
            between = Taken(hops * self.latency, 2 * (size - 1) / size * nbytes / self.bandwidth)
        return Taken(between.latency + inside.latency, between.transmission + inside.transmission)

    def _inside(self, nbytes: int, size: int) -> Taken:
        """Return the seconds of a ring of the workers of each of several hosts."""
        here = min(self.per_host, size)
        if here < 2:
            return Taken()
        return Taken(2 * (here - 1) * self.inside_latency, 2 * (here - 1) / here * nbytes / self.inside_bandwidth)

    def all_gather(self, nbytes: int, size: int, *, codes_of_hosts: bool = False) -> Taken:
        """Return the seconds until all have the `nbytes` of each; or those of each host, with `codes_of_hosts`. A
        host's port receives data for all of its workers once."""
        ports = self.ports(size)
        count = ports if codes_of_hosts else size
        others = count - count / ports
        return Taken() if ports == 1 else Taken(self._hops(ports) * self.latency, others * nbytes / self.bandwidth)

    def all_to_all(self, nbytes: int, size: int) -> Taken:
        """Return the seconds until all have a piece of `nbytes` of each."""
        ports = self.ports(size)
        out = size / ports * (size - size / ports)
        return Taken() if ports == 1 else Taken((ports - 1) * self.latency, out * nbytes / self.bandwidth)

    def _hops(self, ports: int) -> int:
        return ports - 1 if self.reduces == "ring" else math.ceil(math.log2(ports))

    def sent_by_all(self, nbytes: int, size: int) -> float:
        """Return the bytes that all ports send for it."""
        return all_reduce_bytes(nbytes, self.ports(size)) * self.ports(size)

    def in_pieces(self, nbytes: int, size: int) -> float | None:
        """Return the seconds in which hosts exchange the sum of a round among themselves. None where it goes through
        the leader, as on one host, or where it is small."""
        hosts = self.ports(size)
        if not self.per_host or hosts == 1 or nbytes * size <= _HUB_BYTES:
            return None
        inside = self.inside_latency + (self.per_host - 1) * nbytes / self.inside_bandwidth
        return 2 * (self.latency + self.carrying((hosts - 1) / hosts * nbytes) + inside)

    def carrying(self, nbytes: float, count: int = 1) -> float:
        """Return the seconds for which `count` messages of so many bytes keep one worker's side busy."""
        return (1 if self.is_mesh else count) * nbytes / self.bandwidth


def parts_of(nbytes: int) -> list[int]:
    """Return the bytes of the parts of `nbytes`; the first is small, so that sending begins early."""
    if nbytes <= FIRST_PART:
        return [nbytes]
    whole, rest = divmod(nbytes - FIRST_PART, PART)
    return [FIRST_PART, *([PART] * whole), *([rest] if rest else [])]


def links_from(text: str) -> Links:
    """Return the network that `text` describes. Raises `ConfigurationError`, with the possible forms."""
    words = [word.strip() for word in text.split(":")]
    if len(words) < 2:
        raise ConfigurationError(f'--network "{text}": write {_FORM}')
    latency, bandwidth = seconds_from(words[0], text), bytes_per_second_from(words[1])
    numbers = dict(word.split("=", 1) for word in words[2:] if "=" in word)
    unknown = [word for word in words[2:] if word not in ("mesh", "halving") and word.split("=")[0] not in _NUMBERS]
    if unknown:
        raise ConfigurationError(f'--network "{text}": "{unknown[0]}" is not known; write {_FORM}')
    if not bandwidth > 0:
        raise ConfigurationError(f'--network "{text}": the bandwidth must be above 0')
    is_mesh, per_host, leader = "mesh" in words[2:], numbers.get("per-host", "1"), numbers.get("leader", "0s")
    if not per_host.isdecimal() or ("per-host" in numbers and (is_mesh or int(per_host) < 1)):
        raise ConfigurationError(
            f'--network "{text}": per-host is a number of workers (at least 1), which share a port (no :mesh)'
        )
    return Links(
        text=text,
        latency=latency,
        bandwidth=bandwidth,
        is_mesh=is_mesh,
        reduces="halving" if "halving" in words[2:] else "ring",
        per_host=0 if is_mesh else int(per_host),
        leader=seconds_from(leader, text),
    )
