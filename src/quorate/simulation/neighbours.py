"""Gossip, step by step, by the neighbours that each worker waits for; times alone.

Vectors are sent before a worker's gradient is there (`d-psgd`), after it (`sgp`, `d2`, `relay`), or may arrive some
steps late (`osgp`). Worker i ends exchange k when it has reached it, and has received the vector of each neighbour j in
exchange k. A worker with several neighbours sends to them one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.topology import Topology
from quorate.simulation.played import Case, Played

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

    @property
    def messages(self) -> int:
        return sum(self.outgoing)


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
    played, graph, busy = Played(), Graph(topology, case.workers), case.busy
    ranks = range(case.workers)
    now = [0.0] * case.workers
    sent: list[list[float]] = []
    """By exchange, when each worker sent; those that may still be waited for."""
    nbytes = case.nbytes
    heard = 0
    for step in range(case.steps):
        arrive = [now[rank] + busy.before(rank, step) for rank in ranks]
        sent.append(list(now) if ahead and step else arrive)
        place = step - bound
        edges = graph.round(step)
        played.bytes_out += edges.messages * nbytes
        heard += edges.messages
        if place >= 0:
            edges, left = graph.round(place), sent[-1 - bound]
        for rank in ranks:
            last = done = arrive[rank]
            near = edges.sources[rank] if place >= 0 else ()
            for peer in near:
                count = max(len(near), edges.outgoing[peer])
                last = max(last, left[peer])
                done = max(done, left[peer] + case.links.latency + case.links.carrying(nbytes, count))
            end = done + busy.after(rank, step)
            played.step(rank, now[rank], arrive[rank], last, done, end)
            now[rank] = end
        del sent[: -bound - 1]
        case.watch((step + 1) / case.steps)
    played.contributors = 1.0 + heard / (case.steps * case.workers)
    return played


def questions(case: Case, *, ahead: bool = False) -> Played:
    """Simulate `ad-psgd`: each worker asks one neighbour, which answers while it computes; with `ahead` a step early.
    The choice of the neighbour makes no difference, as no worker is assumed to be asked by two at the same moment."""
    played, busy = Played(), case.busy
    nbytes = case.nbytes
    there_and_back = 2 * (case.links.latency + case.links.carrying(nbytes))
    now = [0.0] * case.workers
    for step in range(case.steps):  # all workers of a step at a time: who is late in it is drawn once
        for rank in range(case.workers):
            arrive = now[rank] + busy.before(rank, step)
            done = arrive
            if case.workers > 1:
                done = max(arrive, (now[rank] if ahead and step else arrive) + there_and_back)
                played.bytes_out += 2 * nbytes
            end = done + busy.after(rank, step)
            played.step(rank, now[rank], arrive, arrive, done, end)
            now[rank] = end
        case.watch((step + 1) / case.steps)
    played.contributors = 2.0
    return played
