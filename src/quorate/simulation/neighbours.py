"""Gossip, step by step, by the neighbours that each worker waits for; times alone.

Vectors are sent before a worker's gradient is there (`d-psgd`), after it (`sgp`, `d2`, `relay`), or may arrive some
steps late (`osgp`). Worker i ends exchange k when it has reached it, and has received the vector of each neighbour j in
exchange k. A worker with several neighbours sends to them one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from quorate.core.errors import ConfigurationError
from quorate.core.topology import Topology
from quorate.simulation.played import Case, Played

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quorate.simulation.played import Column

MOST_EDGES = 2_000_000
"""Edges of a graph in one round: more take too much memory and time."""
_TRIED, _KEPT = 8, 64


@dataclass(frozen=True)
class _Round:
    """The edges of one round."""

    sources: Sequence[Sequence[int]]
    """By worker, the others from which it receives."""
    outgoing: Sequence[int]
    """By worker, to how many it sends."""

    @cached_property
    def messages(self) -> int:
        """Messages of all workers."""
        return sum(self.outgoing)

    @cached_property
    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Receivers that have any, where the edges of each begin, the senders of all edges, and the messages that share
        the port of either end."""
        import numpy as np

        counts = np.array([len(peers) for peers in self.sources])
        receivers = np.flatnonzero(counts)
        begins = np.concatenate(([0], np.cumsum(counts[receivers])[:-1])).astype(np.int64)
        peers = np.array([peer for own in self.sources for peer in own], dtype=np.int64)
        shared = np.maximum(np.repeat(counts, counts), np.asarray(self.outgoing)[peers])
        return receivers, begins, peers, shared


class Graph:
    """The rounds of a topology, each looked up once while it recurs."""

    def __init__(self, topology: Topology, size: int) -> None:
        self._topology, self._size = topology, size
        self._cycle = topology.cycle(size)
        self._comes_again = self._cycle == 1 or self._looks_periodic()
        self._rounds: dict[int, _Round] = {}

    def _looks_periodic(self) -> bool:
        """Return whether its rounds are the same after a cycle; drawn ones are not."""
        ranks, rounds = range(min(_TRIED, self._size)), range(min(_TRIED, self._cycle))
        edges, size, cycle = self._topology.in_edges, self._size, self._cycle
        return all(
            edges(rank, size, number) == edges(rank, size, number + cycle) for rank in ranks for number in rounds
        )

    def round(self, number: int) -> _Round:
        """Return round `number`. Raises `ConfigurationError` for too many edges."""
        place = number % self._cycle if self._comes_again else number
        if place not in self._rounds:
            if not self._comes_again and len(self._rounds) > _KEPT:
                self._rounds.clear()
            self._rounds[place] = self._looked_up(place)
        return self._rounds[place]

    def _looked_up(self, number: int) -> _Round:
        size, outgoing, sources = self._size, [0] * self._size, []
        for rank in (size // 2, size - 1, 0):
            if len(self._topology.in_edges(rank, size, number)) * size <= MOST_EDGES:
                break  # not all have too many
        else:
            raise ConfigurationError(
                f"a graph of {size} workers with more than {MOST_EDGES:,} edges is not simulated; choose one with "
                "fewer neighbours"
            )
        for rank in range(size):
            peers = [peer for peer, _ in self._topology.in_edges(rank, size, number) if peer != rank]
            sources.append(peers)
            for peer in peers:
                outgoing[peer] += 1
        return _Round(sources, outgoing)


def exchanges(case: Case, topology: Topology, *, ahead: bool = False, bound: int = 0) -> Played:
    """Simulate an exchange in every step.

    `ahead`: vectors are sent at the end of the step before; else when the worker has reached the exchange. They are
    waited for when they are `bound` steps old.
    """
    import numpy as np

    played, graph = Played(), Graph(topology, case.workers)
    now = np.zeros(case.workers)
    sent: list[Column] = []
    """By exchange, when each worker sent; those that may still be waited for."""
    nbytes, links = case.nbytes, case.links
    heard = 0
    for step in range(case.steps):
        before, _, after = case.drawn.of_all(step)
        arrive = now + before
        sent.append(now if ahead and step else arrive)
        place = step - bound
        edges = graph.round(step)
        played.bytes_out += edges.messages * nbytes
        heard += edges.messages
        last = done = arrive
        if place >= 0 and graph.round(place).messages:
            receivers, begins, peers, shared = graph.round(place).edges
            left = sent[-1 - bound][peers]
            there = left + links.latency + (1 if links.is_mesh else shared) * nbytes / links.bandwidth
            last, done = arrive.copy(), arrive.copy()
            last[receivers] = np.maximum(arrive[receivers], np.maximum.reduceat(left, begins))
            done[receivers] = np.maximum(arrive[receivers], np.maximum.reduceat(there, begins))
        end = done + after
        played.steps(now, arrive, last, done, end)
        now = end
        del sent[: -bound - 1]
        case.watch((step + 1) / case.steps)
    played.contributors = 1.0 + heard / (case.steps * case.workers)
    return played


def questions(case: Case, *, ahead: bool = False) -> Played:
    """Simulate `ad-psgd`: each worker asks one neighbour, which answers while it computes; with `ahead` a step early.
    The choice of the neighbour makes no difference, as no worker is assumed to be asked by two at the same moment."""
    import numpy as np

    played, nbytes = Played(), case.nbytes
    there_and_back = 2 * (case.links.latency + case.links.carrying(nbytes))
    now = np.zeros(case.workers)
    for step in range(case.steps):
        before, _, after = case.drawn.of_all(step)
        arrive = done = now + before
        if case.workers > 1:
            done = np.maximum(arrive, (now if ahead and step else arrive) + there_and_back)
            played.bytes_out += 2 * nbytes * case.workers
        end = done + after
        played.steps(now, arrive, arrive, done, end)
        now = end
        case.watch((step + 1) / case.steps)
    played.contributors = 2.0
    return played
