"""What strategies of gossip have in common: a graph of neighbours, replicas that differ, and a mean at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import UnderWay
from quorate.core.resize import kept
from quorate.core.strategy import Strategy, Worker
from quorate.core.topology import Topology
from quorate.core.vectors import Flat
from quorate.topology.living import among
from quorate.topology.reading import topology_of


@dataclass(kw_only=True)
class OnGraph:
    """What every strategy of gossip keeps."""

    graph: Topology = kept("drop")
    round: int = kept("same", default=-1)
    """The newest exchange, when all have rested."""


@dataclass(frozen=True, kw_only=True)
class Gossip(Strategy):
    """Workers agree with their neighbours only; each keeps a replica, and an optimizer, of its own."""

    replicas = "differ"
    meets: ClassVar[Literal["neighbours", "asks"]] = "neighbours"

    topology: str = "ring"
    """Who is whose neighbour: a name of `quorate list topologies`, with settings as in `random:degree=3,seed=1`."""
    buffers: Literal["none", "mean", "rank0"] = "mean"
    """What buffers (BatchNorm's statistics) are at an evaluation and at the end: each one's own, the mean, rank 0's."""
    on_death: Literal["stop", "continue"] = "continue"
    """Whether the others go on without a worker that has died, on a graph among those that are left; or all stop."""

    def graph(self, size: int) -> Topology:
        """The topology, checked for so many workers."""
        return topology_of(self.topology, size)

    def undirected_graph(self, size: int) -> Topology:
        """The same. Raises `ConfigurationError` for one whose edges lead one way."""
        found = self.graph(size)
        if found.directed:
            raise ConfigurationError(
                f'edges of the topology "{self.topology}" lead one way, and this strategy needs them to lead both '
                "ways; sgp and osgp do not"
            )
        return found

    def settle(self, worker: Worker) -> None:
        worker.state.round = worker.neighbours.round

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is None:
            worker.neighbours.round = worker.state.round

    def begin(self, worker: Worker, graph: Topology, x: Flat | Callable[[int], Flat], *scalars: float) -> UnderWay:
        """Give `x`, or to each neighbour of the next round `x(rank)`; what is given is not written to any more."""
        near = worker.neighbours
        number = near.round + 1
        laid = among(graph, worker.size, near.members())
        to = laid.out_edges(worker.rank, worker.size, number)
        source = laid.in_edges(worker.rank, worker.size, number)
        given = x if isinstance(x, Flat) else {edge.peer: x(edge.peer) for edge in to if edge.peer != worker.rank}
        return near.exchange(given, to, source, scalars=scalars)


def own_copy(worker: Worker) -> Flat:
    """The parameters (and momenta, where they travel), in a vector that is given to others without another copy."""
    near = worker.neighbours
    return near.blank().copy_(worker.replica.read(moments=True) if near.has_moments else worker.parameters)


def check_patience(seconds: float | None) -> None:
    """Raise `ConfigurationError` for what is no time to wait."""
    if seconds is not None and not seconds > 0:
        raise ConfigurationError(f"patience is {seconds}; it is a number of seconds above 0")
