"""The ports of virtual hosts: one in each direction, shared by the workers of a host; and the queues of all links."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from quorate.wire.virtual.network import Demand, Network, Way

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


class Queues:
    """The transmissions on every link: messages and collectives of all channels.

    A transmission begins after the earlier ones on the same link. Latency overlaps with other transmissions: of n equal
    collectives that begin together on idle links the last is done after latency + n * transmission. A slow link does
    not block the others. A single collective takes `Demand.seconds`.

    Cost: a step for each link of a collective: P on a ring.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._busy_until: dict[Way, float] = {}
        self.ports = Ports(network)

    def message(self, way: Way, nbytes: int, now: float) -> float:
        """Return when the last byte of a message that is sent now has left."""
        seconds = self._network.link(*way).transmission(nbytes)
        sent_at = begins_behind(self._busy_until, way, now, seconds) + seconds
        if self.ports.are_between(*way):
            sent_at = max(sent_at, self.ports.leaves(way[0], nbytes, now))
            self._busy_until[way] = sent_at
        return sent_at

    def collective(self, demand: Demand, now: float) -> float:
        """Return when a collective that the last worker calls now is done for all. One that transmits nothing waits for
        no transmission."""
        done = now + demand.seconds
        if not demand.nbytes:
            return done
        between = list[Way]()
        for way in demand.ways:
            seconds = self._network.link(*way).transmission(demand.nbytes)
            if seconds:
                begins = begins_behind(self._busy_until, way, now, seconds)
                done = max(done, begins + (demand.latency + seconds))
            if self.ports.are_between(*way):
                between.append(way)
        seconds = self.ports.seconds(demand.nbytes)
        for begins in self.ports.begin(between, seconds, now):
            done = max(done, begins + (demand.latency + seconds))
        return done
