"""Times at which bytes pass the virtual network: first in, first out on each link and at the ports of hosts."""

from __future__ import annotations

from quorate.wire.virtual.network import Demand, Network, Way
from quorate.wire.virtual.ports import Ports, begins_behind


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
