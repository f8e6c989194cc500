"""Gossip in which momenta are averaged with the parameters, or begin anew after a cycle of the graph."""

from __future__ import annotations

from collections.abc import Iterable

from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import Given, added_up
from quorate.core.strategy import Worker
from quorate.core.topology import Topology
from quorate.core.vectors import Flat
from quorate.gossip.topology.edges import among
from quorate.strategies.parts.gossip import own_copy


def begin_momenta(worker: Worker, graph: Topology, topology: str, momentum: str) -> None:
    """Begin exchanges, in which momenta travel if they are averaged.

    Raises `ConfigurationError` where momenta would begin anew after every exchange.
    """
    if momentum == "reset" and worker.size > 1 and graph.cycle(worker.size) == 1:
        raise ConfigurationError(
            f'momentum="reset" forgets after every cycle of the graph, and with "{topology}" every round is one among '
            f"{worker.size} workers, so nothing would be kept; take a graph that changes, or no momentum"
        )
    worker.neighbours.has_moments = momentum == "average"


def forget_after_cycle(worker: Worker) -> None:
    """Let momenta begin anew if the exchange that was taken in was the last one of a cycle of the graph."""
    near, members = worker.neighbours, worker.neighbours.members()
    cycle = among(worker.state.graph, worker.size, members).cycle(worker.size)
    if len(members) > 1 and cycle > 1 and (near.round + 1) % cycle == 0:
        worker.replica.forget_moments()


def numerators(worker: Worker, x: Flat, u: float) -> Flat:
    """The numerator `x`, of weight `u`, to be given to others; where momenta travel, their numerators are behind it."""
    if not worker.neighbours.has_moments:
        return x
    numerator = own_copy(worker)
    for place, numbers in enumerate(numerator.segments()):
        if place < len(x.segments()):
            numbers.copy_(x.segment(place))
        else:
            numbers.mul_(u)
    return numerator


def take_shares(worker: Worker, shares: Iterable[Given]) -> tuple[Flat, float]:
    """x and u, the sums of all shares; x / u is written into the model, and where momenta travel, their mean, too."""
    total, u = added_up(shares, worker.neighbours.blank())
    worker.replica.write(total / u, moments=worker.neighbours.has_moments)
    return (worker.replica.parameters_of(total).bare() if worker.neighbours.has_moments else total), u
