"""Gossip: who waits for which neighbours, step by step; times alone.

With what has left a worker before its gradient is there (`d-psgd`), what is given after it (`sgp`, `d2`, `relay`), and
what may come some steps late (`osgp`): worker i is done with exchange k when it has come to it, and for each neighbour
j with what j has sent in exchange k. A worker with several neighbours sends to them one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.topology import Topology
from quorate.simulation.played import Case, Played

MOST_EDGES = 2_000_000
"""Of a graph in one round: more take memory and time that nobody wants to spend."""
_TRIED, _KEPT = 8, 64


@dataclass(frozen=True)
class _Round:
    """Who gives to whom in one round."""

    sources: Sequence[Sequence[int]]
    """By worker, whom it gets something from, without itself."""
    outgoing: Sequence[int]
    """By worker, to how many it gives."""

    @property
    def messages(self) -> int:
        return sum(self.outgoing)


class Graph:
    """The rounds of a topology, each looked up once for as long as it comes again."""

    def __init__(self, topology: Topology, size: int) -> None:
        self._topology, self._size = topology, size
        self._cycle = topology.cycle(size)
        self._comes_again = self._cycle == 1 or self._looks_periodic()
        self._rounds: dict[int, _Round] = {}

    def _looks_periodic(self) -> bool:
        """Whether its rounds are the same after a cycle; drawn ones are not."""
        ranks, rounds = range(min(_TRIED, self._size)), range(min(_TRIED, self._cycle))
        edges, size, cycle = self._topology.in_edges, self._size, self._cycle
        return all(
            edges(rank, size, number) == edges(rank, size, number + cycle) for rank in ranks for number in rounds
        )

    def round(self, number: int) -> _Round:
        """Round `number`. Raises `ConfigurationError` for too many edges."""
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
            mine = [peer for peer, _ in self._topology.in_edges(rank, size, number) if peer != rank]
            sources.append(mine)
            for peer in mine:
                outgoing[peer] += 1
        return _Round(sources, outgoing)


def exchanges(case: Case, topology: Topology, *, ahead: bool = False, bound: int = 0) -> Played:
    """An exchange in every step. `ahead`: what is sent leaves at the end of the step before; else when the worker has
    come. It is waited for as soon as it is `bound` steps old.
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
    """`ad-psgd`: each asks one neighbour, which answers while it computes; with `ahead` a step early.

    Whom it asks makes no difference, as nobody is taken to be asked by two at the same moment.
    """
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
