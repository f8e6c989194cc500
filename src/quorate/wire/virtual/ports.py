"""The ports of virtual hosts: one each way, which all workers of a host share; and what goes through them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quorate.wire.virtual.network import Network


class Ports:
    """When messages between hosts get through, first come, first served. What is sent is received at the same time, one
    latency later (cut-through)."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._out: dict[int, float] = {}
        self._into: dict[int, float] = {}

    def are_between(self, source: int, target: int) -> bool:
        """Whether a message goes through any."""
        network = self._network
        return bool(network.hosts) and network.host_of(source) != network.host_of(target)

    def seconds(self, nbytes: int) -> float:
        """For which `nbytes` keep a port busy."""
        return nbytes / self._network.bandwidth

    def leaves(self, source: int, nbytes: int, now: float) -> float:
        """When `nbytes` are sent, as far as the port goes. Those that wait for a thin link keep nobody from it."""
        return self._through(self._out, self._network.host_of(source), now, nbytes)

    def enters(self, target: int, nbytes: int, begins: float) -> float:
        """When `nbytes` are there, the first of which comes to the port now, at `begins`."""
        return self._through(self._into, self._network.host_of(target), begins, nbytes)

    def _through(self, busy_until: dict[int, float], host: int, begins: float, nbytes: int) -> float:
        busy_until[host] = max(begins, busy_until.get(host, 0.0)) + self.seconds(nbytes)
        return busy_until[host]


class Traffic:
    """Bytes of tensors that workers have sent to workers of other hosts, and got from them; and headers.

    Where no hosts are told apart each worker counts as one.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self.out = Counter[int]()
        """By rank."""
        self.into = Counter[int]()
        self.header_bytes = 0
        self.messages = 0

    def host(self, rank: int) -> int:
        """The lowest rank on the host of `rank`."""
        return self._network.host_of(rank) if self._network.hosts else rank

    def sent(self, source: int, target: int, nbytes: int, header_bytes: int) -> None:
        """A message."""
        if self.host(source) != self.host(target):
            self.out[source] += nbytes
            self.into[target] += nbytes
            self.header_bytes += header_bytes
            self.messages += 1

    def collective(self, operation: str, nbytes: Sequence[int], root: int) -> None:
        """As `collective_seconds` prices it: a ring in order of rank, or a star; `nbytes[r]` is what r gives."""
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
        """By the lowest rank on a host."""
        return self._by_host(self.out)

    def into_hosts(self) -> Counter[int]:
        """Likewise."""
        return self._by_host(self.into)

    def _by_host(self, by_rank: Counter[int]) -> Counter[int]:
        found = Counter[int]()
        for rank, nbytes in by_rank.items():
            found[self.host(rank)] += nbytes
        return found
