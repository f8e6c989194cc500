"""Virtual worlds whose bytes between hosts are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from quorate.core.contracts import Message
from quorate.wire.virtual.formation import nbytes
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.rendezvous import Call, Key, Meeting
from quorate.wire.virtual.stage import Address, Departure, Stage, _as_json
from quorate.wire.virtual.world import VirtualWorld


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

    def out_of_hosts(self) -> Counter[int]:
        """The bytes sent by each host, by its lowest rank."""
        return self._by_host(self.out)

    def into_hosts(self) -> Counter[int]:
        """The bytes received by each host, by its lowest rank."""
        return self._by_host(self.into)

    def _by_host(self, by_rank: Counter[int]) -> Counter[int]:
        host_bytes = Counter[int]()
        for rank, count in by_rank.items():
            host_bytes[self._host(rank)] += count
        return host_bytes

    def _host(self, rank: int) -> int:
        return self._network.host_of(rank) if self._network.hosts else rank

    def sent(self, source: int, target: int, tensor_bytes: int, header_bytes: int) -> None:
        """Count a message."""
        if self._host(source) != self._host(target):
            self.out[source] += tensor_bytes
            self.into[target] += tensor_bytes
            self.header_bytes += header_bytes
            self.messages += 1

    def collective(self, operation: str, sizes: Sequence[int], root: int) -> None:
        """Count a collective as in `demand_of`, a ring in order of rank or a star; `sizes[r]` is the input of r."""
        size, total = len(sizes), sum(sizes)
        share = {"all_reduce": 2 * (size - 1) / size, "reduce_scatter": (size - 1) / size, "broadcast": 1, "reduce": 1}
        for rank in range(size):
            after = (rank + 1) % size
            if operation in share:
                self.sent(rank, after, round(share[operation] * sizes[root]), 0)
            elif operation == "all_gather":
                self.sent(rank, after, total - sizes[after], 0)
            elif operation == "gather":
                self.sent(rank, root, sizes[rank], 0)
            elif operation == "scatter":
                self.sent(root, rank, sizes[root] // size, 0)
            elif operation == "all_to_all":
                for other in range(size):
                    self.sent(rank, other, sizes[rank] // size, 0)


class CountedWorld(VirtualWorld):
    """A virtual world that counts the traffic of its newest run."""

    traffic: Traffic

    def _new_stage(self) -> Stage:
        stage = super()._new_stage()
        traffic = self.traffic = Traffic(stage.network)
        post: Any = stage.post
        rendezvous: Any = stage.rendezvous
        send, hold = post.send, rendezvous._hold

        def counted_send(source: int, address: Address, message: Message) -> Departure:
            departure: Departure = send(source, address, message)
            if source != address[1]:
                traffic.sent(source, address[1], nbytes(message.tensors), _as_json(message)[1])
            return departure

        def counted_hold(meeting: Meeting, key: Key, call: Call) -> None:
            if not meeting.is_at_odds:
                traffic.collective(call.operation, tuple(map(nbytes, meeting.inputs)), call.root or 0)
            hold(meeting, key, call)

        post.send, rendezvous._hold = counted_send, counted_hold
        return stage
