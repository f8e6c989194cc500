"""When bytes get through the virtual network: first in, first out on each link and, between hosts, at their ports."""

from __future__ import annotations

from quorate.wire.virtual.network import Demand, Network, Way
from quorate.wire.virtual.ports import Ports, begins_behind


class Queues:
    """What every link is busy with: messages and collectives, whatever their channel.

    A transmission begins behind those that came before it on the same link. Latency passes beside other transmissions:
    of n equal collectives that begin together on idle links the last is done after latency + n * transmission. Each
    link is busy at its own pace, so a thin one keeps nobody from the others. Alone, each takes `Demand.seconds`.

    Cost: a step for each link of a collective: P on a ring.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._busy_until: dict[Way, float] = {}
        self.ports = Ports(network)

    def message(self, way: Way, nbytes: int, now: float) -> float:
        """When the last byte of a message is on its way that is sent now."""
        seconds = self._network.link(*way).transmission(nbytes)
        gone = begins_behind(self._busy_until, way, now, seconds) + seconds
        if self.ports.are_between(*way):
            gone = max(gone, self.ports.leaves(way[0], nbytes, now))
            self._busy_until[way] = gone
        return gone

    def collective(self, demand: Demand, now: float) -> float:
        """When a collective is done for everyone to which the last worker comes now. What transmits nothing waits for
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
