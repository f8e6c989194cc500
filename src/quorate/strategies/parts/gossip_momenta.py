"""Gossip in which momenta can be mixed with the parameters, or forgotten: what `d-psgd` and `sgp` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import Given, added_up
from quorate.core.strategy import Worker
from quorate.core.topology import Topology
from quorate.core.vectors import Flat
from quorate.strategies.parts.gossip import Gossip, own_copy
from quorate.topology.living import among


@dataclass(frozen=True, kw_only=True)
class GossipWithMomenta(Gossip):
    """What the optimizer keeps in the shape of the parameters goes the way of the parameters, if that is wanted."""

    momentum: Literal["keep", "average", "reset"] = "keep"
    """What becomes of what the optimizer keeps: each worker's own stays, it is averaged with the neighbours' like the
    parameters, or begins anew after every cycle of a graph that changes."""

    def prepare(self, worker: Worker, graph: Topology) -> Topology:
        """Called in `start`; returns `graph`. Raises `ConfigurationError` where nothing would ever be kept."""
        if self.momentum == "reset" and worker.size > 1 and graph.cycle(worker.size) == 1:
            raise ConfigurationError(
                f'momentum="reset" forgets after every cycle of the graph, and with "{self.topology}" every round is '
                f"one among {worker.size} workers, so nothing would be kept; take a graph that changes, or no momentum"
            )
        worker.neighbours.has_moments = self.momentum == "average"
        return graph

    def put(self, worker: Worker, x: Flat) -> None:
        """Let the model, and where they travel the momenta, be `x`."""
        worker.replica.write(x, moments=self.momentum == "average")

    def forget(self, worker: Worker, graph: Topology) -> None:
        """An exchange was taken in: with it a cycle may have ended."""
        if self.momentum == "reset":
            near, members = worker.neighbours, worker.neighbours.members()
            cycle = among(graph, worker.size, members).cycle(worker.size)
            if len(members) > 1 and cycle > 1 and (near.round + 1) % cycle == 0:
                worker.replica.forget_moments()

    def shares(self, worker: Worker, x: Flat, u: float) -> Flat:
        """What a numerator x, of weight u, gives to others: the momenta's numerators with it, where they travel."""
        if self.momentum != "average":
            return x
        given = own_copy(worker)
        for place, numbers in enumerate(given.segments()):
            if place < len(x.segments()):
                numbers.copy_(x.segment(place))
            else:
                numbers.mul_(u)
        return given

    def sums(self, worker: Worker, found: Iterable[Given]) -> tuple[Flat, float]:
        """x and u out of shares of all; the model becomes x / u, and where they travel momenta their own mean."""
        total, u = added_up(found, worker.neighbours.blank())
        self.put(worker, total / u)
        return (worker.replica.parameters_of(total).bare() if self.momentum == "average" else total), u
