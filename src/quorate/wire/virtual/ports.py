"""The ports of virtual hosts: one in each direction, shared by the workers of a host; and their traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

from quorate.wire.virtual.network import Network, Way

_K = TypeVar("_K", bound=Hashable)


def begins_behind(busy_until: dict[_K, float], place: _K, now: float, seconds: float) -> float:
    """Return the begin of a transmission that reaches `place` now, and keep `place` busy for its `seconds`."""
    begins = max(now, busy_until.get(place, 0.0))
    busy_until[place] = begins + seconds
    return begins


class Ports:
    """Times at which messages pass the ports of hosts, first come, first served. Bytes arrive as others are sent, one
    latency later (cut-through)."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._out: dict[int, float] = {}
        self._into: dict[int, float] = {}

    def are_between(self, source: int, target: int) -> bool:
        """Whether a message from `source` to `target` passes any port."""
        network = self._network
        return bool(network.hosts) and network.host_of(source) != network.host_of(target)

    def seconds(self, nbytes: float) -> float:
        """Return the seconds for which `nbytes` keep a port busy."""
        return nbytes / self._network.bandwidth

    def leaves(self, source: int, nbytes: int, now: float) -> float:
        """Return when the port has sent `nbytes`. Messages that wait for a slow link do not block it."""
        return self._through(self._out, self._network.host_of(source), now, nbytes)

    def enters(self, target: int, nbytes: int, begins: float) -> float:
        """Return when the port has received `nbytes`, the first of which reaches it now, at `begins`."""
        return self._through(self._into, self._network.host_of(target), begins, nbytes)

    def begin(self, ways: Sequence[Way], seconds: float, now: float) -> list[float]:
        """Return the begin of a collective at each port on its `ways`, which it keeps busy for `seconds`, however many
        ways pass the port."""
        network = self._network
        out = dict.fromkeys(network.host_of(source) for source, _ in ways)
        into = dict.fromkeys(network.host_of(target) for _, target in ways)
        sides = ((self._out, out), (self._into, into))
        return [begins_behind(busy_until, host, now, seconds) for busy_until, hosts in sides for host in hosts]

    def _through(self, busy_until: dict[int, float], host: int, begins: float, nbytes: int) -> float:
        seconds = self.seconds(nbytes)
        return begins_behind(busy_until, host, begins, seconds) + seconds


class Traffic:
    """Bytes of tensors, and of headers, that workers have sent to other hosts and received from them.

    Without hosts each worker counts as one.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self.out = Counter[int]()
        """Bytes sent, by rank."""
        self.into = Counter[int]()
        self.header_bytes = 0
        self.messages = 0

    def host(self, rank: int) -> int:
        """Return the lowest rank on the host of `rank`."""
        return self._network.host_of(rank) if self._network.hosts else rank

    def sent(self, source: int, target: int, nbytes: int, header_bytes: int) -> None:
        """Count a message."""
        if self.host(source) != self.host(target):
            self.out[source] += nbytes
            self.into[target] += nbytes
            self.header_bytes += header_bytes
            self.messages += 1

    def collective(self, operation: str, nbytes: Sequence[int], root: int) -> None:
        """Count a collective as in `demand_of`, a ring in order of rank or a star; `nbytes[r]` is the input of r."""
        size, total = len(nbytes), sum(nbytes)
        share = {"all_reduce": 2 * (size - 1) / size, "reduce_scatter": (size - 1) / size, "broadcast": 1, "reduce": 1}
        for rank in range(size):
            after = (rank + 1) % size
            if operation in share:
                self.sent(rank, after, round(share[operation] * nbytes[root]), 0)
            elif operation == "all_gather":
                self.sent(rank, after, total - nbytes[after], 0)
            elif operation == "gather":
                self.sent(rank, root, nbytes[rank], 0)
            elif operation == "scatter":
                self.sent(root, rank, nbytes[root] // size, 0)
            elif operation == "all_to_all":
                for other in range(size):
                    self.sent(rank, other, nbytes[rank] // size, 0)

    def out_of_hosts(self) -> Counter[int]:
        """Return the bytes sent by each host, by its lowest rank."""
        return self._by_host(self.out)

    def into_hosts(self) -> Counter[int]:
        """Return the bytes received by each host, by its lowest rank."""
        return self._by_host(self.into)

    def _by_host(self, by_rank: Counter[int]) -> Counter[int]:
        host_bytes = Counter[int]()
        for rank, nbytes in by_rank.items():
            host_bytes[self.host(rank)] += nbytes
        return host_bytes
