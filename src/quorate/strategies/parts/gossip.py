"""Gossip: settings, the graph of neighbours, exchanges along its edges, momenta, edits, and the state of push-sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import NeighbourShare, NumberedExchanges, UnderWay, added_up
from quorate.core.own_replica import OwnReplica
from quorate.core.resize import kept
from quorate.core.strategy import Strategy, Worker
from quorate.core.topology import Edge, Topology
from quorate.core.vectors import Flat, scale_into
from quorate.gossip.topology import topology_of
from quorate.gossip.topology.edges import among


@dataclass(frozen=True, kw_only=True)
class GossipSettings(Strategy):
    """The settings that strategies of gossip have in common; their hooks are their own."""

    replicas = "differ"
    meets: ClassVar[Literal["neighbours", "asks"]] = "neighbours"

    topology: str = "ring"
    """The graph of neighbours: a name from `quorate list topologies`, with settings as in `random:degree=3,seed=1`."""
    buffers: Literal["none", "mean", "rank0", "rank0-each-step"] = "mean"
    """Buffers (such as BatchNorm statistics) used at an evaluation and at the end: those of each worker, their mean, or
    those of rank 0."""
    on_death: Literal["stop", "continue"] = "continue"
    """Whether the survivors continue on a graph among themselves after the death of a worker, or all workers stop."""

    @property
    def acts_on_pieces(self) -> bool:
        return self.meets == "neighbours" and getattr(self, "patience", None) is None


@dataclass(kw_only=True)
class OnGraph(NumberedExchanges):
    """The graph, and the number of the newest exchange on it; the state of a strategy of gossip, or a part of it."""

    graph: Topology = kept("drop")


def undirected_graph(topology: str, size: int) -> Topology:
    """The topology for so many workers. Raises `ConfigurationError` where its edges lead one way."""
    graph = topology_of(topology, size)
    if graph.directed:
        raise ConfigurationError(
            f'edges of the topology "{topology}" lead one way, and this strategy needs them to lead both ways; sgp and '
            "osgp do not"
        )
    return graph


def unchanging_graph(topology: str, size: int, why: str) -> Topology:
    """Return a graph as `undirected_graph`. Raises also if neighbours change, which `why` says is not possible."""
    graph = undirected_graph(topology, size)
    if graph.cycle(size) > 1:
        raise ConfigurationError(f'{why}, and those of "{topology}" change')
    return graph


def edges_of_next(worker: Worker) -> tuple[tuple[Edge, ...], tuple[Edge, ...]]:
    """To whom this worker gives in the next exchange, and from whom it gets; itself first. Asked once for each."""
    near = worker.neighbours
    laid, number = among(worker.state.graph, worker.size, near.members()), near.round + 1
    return laid.out_edges(worker.rank, worker.size, number), laid.in_edges(worker.rank, worker.size, number)


def begin_exchange(worker: Worker, x: Flat | Callable[[int], Flat], *scalars: float) -> UnderWay:
    """Begin the next exchange with `x`, or `x(rank)` for each neighbour; do not write to the vectors any more."""
    near = worker.neighbours
    to, source = edges_of_next(worker)
    gifts = x if isinstance(x, Flat) else {edge.peer: x(edge.peer) for edge in to if edge.peer != worker.rank}
    return near.exchange(gifts, to, source, scalars=scalars)


def own_copy(worker: Worker) -> Flat:
    """Return the parameters (and momenta, if they travel), in a vector that is sent without another copy."""
    near = worker.neighbours
    return near.blank().copy_(worker.replica.read(moments=True) if near.has_moments else worker.parameters)


def check_patience(seconds: float | None) -> None:
    """Raise `ConfigurationError` for a patience that is not above 0."""
    if seconds is not None and not seconds > 0:
        raise ConfigurationError(f"patience is {seconds}; it must be a number of seconds above 0")


def begin_momenta(worker: Worker, graph: Topology, topology: str, momentum: str) -> None:
    """Begin exchanges, in which momenta travel if they are averaged.

    Raises `ConfigurationError` where momenta would begin again after every exchange.
    """
    if momentum == "reset" and worker.size > 1 and graph.cycle(worker.size) == 1:
        raise ConfigurationError(
            f'momentum="reset" forgets after every cycle of the graph, and with "{topology}" every round is one among '
            f"{worker.size} workers, so nothing would be kept. Choose a graph that changes, or no momentum"
        )
    worker.neighbours.has_moments = momentum == "average"


def forget_after_cycle(worker: Worker) -> None:
    """Let momenta begin again if the exchange that was taken in was the last one of a cycle of the graph."""
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


def take_shares(worker: Worker, shares: Iterable[NeighbourShare]) -> tuple[Flat, float]:
    """x and u, the sums of all shares; x / u is written into the model, and where momenta travel, their mean, too."""
    total, u = added_up(shares, worker.neighbours.blank())
    worker.replica.write(total / u, moments=worker.neighbours.has_moments)
    return (worker.replica.parameters_of(total).bare() if worker.neighbours.has_moments else total), u


@dataclass(kw_only=True)
class KeptCopy:
    """The copy, and the parameters as the model got them from it. Used under the lock that guards the copy."""

    x: Flat = kept("average")
    shown: Flat | None = kept("drop", default=None)
    """x as it was when the model got it."""
    pause_edited: bool = kept("drop", default=False)
    """Whether the script has edited the model since the newest step, in a pause of this worker."""

    def show(self, worker: Worker) -> None:
        """Write the copy into the model."""
        worker.parameters = self.x
        self.shown = self.x.clone() if self.shown is None else self.shown.copy_(self.x)

    def take_edits(self, worker: Worker, *, at_pause: bool = False) -> None:
        """Add to the copy what the script has written into the model since then.

        Where neighbours have moved the same numbers meanwhile, sums over all workers are kept. If the worker is
        `at_pause`, the copy becomes the edited model, and stays so until its next step. Neighbours may have moved it by
        numbers from before edits, of this worker and of theirs.
        """
        is_edited = self.shown is not None and worker.replica.take_edits(self.shown, into=self.x)
        self.pause_edited = at_pause and (self.pause_edited or is_edited)
        if is_edited and self.shown is not None:
            self.shown.copy_(worker.parameters)
            if at_pause:
                self.x.copy_(self.shown)


@dataclass(kw_only=True)
class PushSum:
    """x and u of the paper's x and w; the model shows z = x / u. Shares in flight are in no worker's state."""

    x: Flat = kept("average")
    u: float = kept("average", default=1.0)
    came_x: Flat | None = kept("average", default=None)
    """The sum of the numerators that arrived during a pause of all; the next step takes it in."""
    came_u: float = kept("average", default=0.0)
    """Their weights, added up."""
    is_edited: bool = kept("drop", default=False)
    """Whether the script has edited the model since the newest step, during a pause of this worker."""

    @property
    def mass(self) -> float:
        """The weight of all that this worker holds."""
        return self.u + self.came_u

    def take_edits(self, replica: OwnReplica, *, at_pause: bool = False) -> None:
        """Add to the numerator what the script has written into the model since it showed z."""
        z = self.x / self.u
        has_edits = replica.take_edits(z, into=self.x, scale=self.u)
        self.is_edited = at_pause and (self.is_edited or has_edits)
        if self.came_x is not None:
            replica.take_edits(z, into=self.came_x, scale=self.came_u)

    def keep(self, shares: Sequence[NeighbourShare], blank: Flat) -> None:
        """Hold shares that arrived during a pause of all; `blank` takes their sum.

        They may be older than an edit of the model after the newest step: then their weight is added to the model.
        """
        if shares or self.came_x is not None:
            self.came_x, self.came_u = added_up([*shares, *self.taken()], blank)
            if self.is_edited:
                scale_into(self.x / self.u, self.came_u, into=self.came_x)

    def taken(self) -> list[NeighbourShare]:
        """Return the shares that arrived during a pause as one share, and hold them no more."""
        held = [] if self.came_x is None else [NeighbourShare(self.came_x, 1.0, (self.came_u,), -1)]
        self.came_x, self.came_u = None, 0.0
        return held

    def consensus(self, own: Flat) -> Flat:
        """Return the parameters of all that this worker holds; `own`, those of the model, may be written to."""
        return own if self.came_x is None else own.copy_((self.x + self.came_x) / self.mass)
