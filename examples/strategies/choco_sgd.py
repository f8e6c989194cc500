"""Gossip with compressed differences: neighbours keep copies of each other, and tell only what changes most.

Idea: Every worker and its neighbours keep the same copy of its parameters. After a step of its own optimizer it tells
its neighbours the largest entries (`ratio` of them) of what its parameters differ from that copy, and all add them to
it. Then it goes a part `gamma` of the way to the mean of its neighbours' copies. What was not told stays in the
difference.

Cost: With d parameters and n neighbours, 2 `ratio` d numbers are sent to each (entries, and where they are), after
the step, not overlapped; 2 n copies of the parameters in memory, and one selection of the largest entries for each
neighbour. A worker waits for its neighbours only.

When it loses: Where the network is fast: finding the largest entries takes longer than sending all. Where `gamma` is
too large for the ratio, replicas part; the smaller the ratio, the smaller it must be.

Honesty:
- worker death: goes on, on a graph among those that are left
- pause: its neighbours wait, and theirs a step later
- slow worker: its neighbours wait, and theirs a step later
- corrupt gradient: its worker leaves its own step out
- resize: goes on; copies begin anew
- resume: goes on; every worker with its own replica and copies

Paper: A. Koloskova, S. Stich, M. Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
communication", ICML 2019, Algorithm 2. Copies are kept by edge: `told` are those of x^_i at its neighbours, `heard`
the x^_j.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quorate import strategies
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat, Layout
from quorate.strategies.parts.gossip import GossipSettings, OnGraph, begin_exchange, undirected_graph


@dataclass(kw_only=True)
class State(OnGraph):
    told: dict[int, Flat] = kept("keyed", default_factory=dict)  # the copy that each neighbour has of this replica
    heard: dict[int, Flat] = kept("keyed", default_factory=dict)  # a copy of each neighbour's


@strategies.register("choco-sgd")
@dataclass(frozen=True, kw_only=True)
class ChocoSGD(GossipSettings):
    """Neighbours are told the largest changes only, and parameters go towards copies of the neighbours'."""

    ratio: float = 0.1  # of the entries
    gamma: float = 0.2

    def start(self, worker: Worker) -> State:
        worker.neighbours.codec = self
        return State(graph=undirected_graph(self.topology, worker.size))

    def encode(self, x: Flat) -> list[Tensor]:
        largest = [part.abs().topk(int(-(-self.ratio * part.numel() // 1))).indices for part in x.parts]  # rounded up
        return [y for part, at in zip(x.parts, largest, strict=True) for y in (part[at], at.int())]

    def decode(self, tensors: list[Tensor], layout: Layout) -> Flat:
        x = Flat.zeros(layout)
        for part, numbers, at in zip(x.parts, tensors[::2], tensors[1::2], strict=True):
            part[at.long()] = numbers
        return x

    def step(self, worker: Worker) -> None:
        worker.update()  # x^(t+1/2)
        s, x = worker.state, worker.parameters.bare()
        under_way = begin_exchange(worker, lambda peer: x - s.told.setdefault(peer, x * 0.0))  # q_i
        for peer, q in under_way.sent.items():
            s.told[peer].add_(q)  # x^_i
        for peer, given in under_way.wait().items():
            s.heard.setdefault(peer, x * 0.0).add_(given.x)  # x^_j
            x.add_(s.heard[peer] - s.told[peer], self.gamma * given.weight)  # x^(t+1)
        worker.parameters = x

    def settle(self, worker: Worker) -> None:
        for given in worker.neighbours.late():
            worker.state.heard.setdefault(given.source, given.x * 0.0).add_(given.x)
        worker.state.round = worker.neighbours.round

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.neighbours.round = worker.state.round if at is None else worker.neighbours.round
