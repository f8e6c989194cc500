"""RelaySGD: on a tree, neighbours relay sums of parameters, so that all workers count equally at any distance.

Idea: In gossip by weighted means the contribution of a distant worker becomes smaller at each worker on the way. A tree
has only one path between two workers, so sums can be relayed instead. Worker i sends to j the sum of its own parameters
and of the last sums from its other neighbours, and the number of workers in that sum. Then x_i = (own + all received) /
count: the mean of all parameters, each as stale as its path is long. Momenta stay each worker's own.

Cost: Per step, d + 1 numbers to each neighbour, a different vector for each, after the backward pass; in memory one
copy of the parameters for each neighbour. All neighbours wait for each other in every step.

When it loses: Where paths through the tree are long (a chain of many workers): parameters of distant workers are many
steps stale, and learning rates must be smaller. Where data are alike: `d-psgd` does as well, on any graph.

Honesty:
- worker death: goes on; its old sums count until all remaining workers know of the death. Then they form a new tree on
  which nothing has been relayed yet; a tree from a file becomes disconnected; with `on_death="stop"` all stop
- pause: goes on; its neighbours wait until it wakes up, and then everyone else
- slow worker: goes on; all wait for it, a few steps later
- corrupt gradient: goes on; a gradient with NaN or infinity is reported, skipped, or ends the training
  (`on_nonfinite`); any other one corrupts all replicas, one neighbour further with each step
- resize: goes on; from the mean of the old replicas, with nothing relayed yet
- resume: goes on; every worker with its own replica, with nothing relayed yet

Paper: Vogels, He, Koloskova, Lin, Karimireddy, Stich, Jaggi, "RelaySum for decentralized deep learning on
heterogeneous data", NeurIPS 2021, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.topology import Edge
from quorate.core.vectors import Flat
from quorate.gossip.topology.edges import among
from quorate.strategies import register
from quorate.strategies.parts.gossip import GossipSettings, OnGraph, own_copy, undirected_graph


@dataclass(kw_only=True)
class State(OnGraph):
    """The newest sum of parameters from each neighbour, and the number of workers in it."""

    sums: dict[int, Flat] = kept("drop", default_factory=dict)
    counts: dict[int, float] = kept("drop", default_factory=dict)
    members: tuple[int, ...] | None = kept("drop", default=None)
    """Among whom they were relayed."""


@register("relay")
@dataclass(frozen=True, kw_only=True)
class Relay(GossipSettings):
    """Sums of the parameters are relayed from neighbour to neighbour on a tree."""

    topology: str = "binary-tree"
    """The graph, as in `d-psgd`; it must be a tree: path, binary-tree, star, or a file with a tree."""

    def start(self, worker: Worker) -> State:
        graph, size = undirected_graph(self.topology, worker.size), worker.size
        edges = sum(len(graph.out_edges(rank, size, 0)) - 1 for rank in range(size)) // 2
        if edges != size - 1 or graph.cycle(size) > 1:
            raise ConfigurationError(
                f'relay needs a tree that stays the same, and "{self.topology}" is none for {size} workers; '
                "path, binary-tree and star are"
            )
        return State(graph=graph)

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        worker.update()  # line 3
        own, near = own_copy(worker), worker.neighbours
        members = near.members()
        if s.members not in (None, members):
            s.sums, s.counts = {}, {}  # what is under way on the old tree counts for nobody any more
        s.members = members
        edges = self._edges(s, worker.rank, worker.size)
        sums = {peer: near.blank().copy_(own) for peer, _ in edges}
        counts = dict.fromkeys(sums, 1.0)
        for peer in sums:  # line 5
            for other in s.sums.keys() - {peer}:
                sums[peer].add_(s.sums[other])
                counts[peer] += s.counts[other]
        received = near.exchange(sums, edges, edges, scalars=list(counts.values())).wait()
        for peer, message in received.items():
            s.sums[peer] = message.x
            theirs = [other for other, _ in self._edges(s, peer, worker.size)]
            s.counts[peer] = message.scalars[theirs.index(worker.rank)]
        total = own
        for peer in sorted(s.sums):
            total.add_(s.sums[peer])
        worker.parameters = total / (1.0 + sum(s.counts.values()))  # lines 7 and 8

    def restored(self, worker: Worker, at: Flat | None) -> None:
        if at is not None:
            worker.state.sums, worker.state.counts = {}, {}  # of what the parameters were before

    def _edges(self, s: State, rank: int, size: int) -> tuple[Edge, ...]:
        assert s.members is not None
        return among(s.graph, size, s.members).out_edges(rank, size, 0)[1:]
