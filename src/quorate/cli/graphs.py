"""A topology drawn and measured, for `quorate explain TOPOLOGY -n 16`."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator
from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.topology import Topology
from quorate.gossip.topology import topology_of

MOST_DRAWN = 64
"""Workers up to which there is a picture."""
MOST_MEASURED = 1024
_ROUNDS = string.digits[1:] + string.ascii_lowercase
"""The characters for rounds in a picture."""
_EVERY, _MORE, _NEVER, _OWN = "*", "+", ".", "\\"


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The edges and the mixing of a topology for a number of workers."""

    topology: str
    workers: int
    edges: tuple[tuple[tuple[int, int, float], ...], ...]
    """For each round of a cycle: source, target and weight of each edge."""
    cycle: int
    is_directed: bool
    gap: float
    """1 - the factor by which the distance from the mean falls in a round."""
    exact_after: int | None
    """Rounds until all have the exact mean; None: never."""
    rounds_to_1_percent: float | None
    """Rounds until the distance from the mean is a hundredth of what it was."""
    messages: float
    """Mean number of messages that a worker sends in a round."""
    most_messages: int
    """Messages that the busiest worker sends or receives in a round."""


def drawn(text: str, workers: int) -> Drawn:
    """Draw and measure the topology in `text`. Raises `ConfigurationError` where that is impossible."""
    if not 1 <= workers <= MOST_MEASURED:
        raise ConfigurationError(f"-n is {workers}; a topology can be measured for 1 to {MOST_MEASURED} workers")
    from quorate.gossip.topology.mixing import mixing_of

    topology = topology_of(text, workers)
    mixing = mixing_of(topology, workers)
    rounds = mixing.rounds_to(0.01)
    return Drawn(
        topology=text,
        workers=workers,
        edges=tuple(tuple(_edges(topology, workers, round)) for round in range(topology.cycle(workers))),
        cycle=topology.cycle(workers),
        is_directed=topology.directed,
        gap=round(mixing.gap, 6),
        exact_after=mixing.exact_after,
        rounds_to_1_percent=round(rounds, 2) if math.isfinite(rounds) else None,
        messages=round(mixing.messages, 3),
        most_messages=mixing.most_messages,
    )


def _edges(topology: Topology, workers: int, round: int) -> Iterator[tuple[int, int, float]]:
    for rank in range(workers):
        for peer, weight in topology.out_edges(rank, workers, round):
            yield rank, peer, weight


def lines(graph: Drawn) -> Iterator[str]:
    """Yield the lines of the picture, and of the figures below it."""
    ways = "one way" if graph.is_directed else "both ways"
    yield f"{graph.topology} among {graph.workers} workers: edges lead {ways}"
    if graph.workers <= MOST_DRAWN:
        yield ""
        yield from _picture(graph)
    exact = (
        "never"
        if graph.exact_after is None
        else f"after {graph.exact_after} round{'s' if graph.exact_after > 1 else ''}"
    )
    to_1 = "never" if graph.rounds_to_1_percent is None else f"{graph.rounds_to_1_percent:.1f}"
    yield ""
    yield f"  rounds in a cycle              {graph.cycle}"
    yield f"  spectral gap, per round        {graph.gap:.4f}"
    yield f"  exact mean                     {exact}"
    yield f"  rounds to 1 % of the distance  {to_1}"
    yield f"  messages of a worker           {graph.messages:g} a round, {graph.most_messages} at the busiest"


def _picture(graph: Drawn) -> Iterator[str]:
    rounds: dict[tuple[int, int], list[int]] = {}
    for number, edges in enumerate(graph.edges):
        for rank, peer, _ in edges:
            rounds.setdefault((rank, peer), []).append(number)
    wide = len(str(graph.workers - 1))
    yield f"  {'':>{wide}} " + "".join(str(rank % 10) for rank in range(graph.workers)) + "  gets"
    for rank in range(graph.workers):
        yield f"  {rank:>{wide}} " + "".join(
            _OWN if rank == peer else _mark(rounds.get((rank, peer), []), graph.cycle) for peer in range(graph.workers)
        )
    if graph.cycle == 1:
        yield f"  {_EVERY} gives in every round"
    else:
        yield f"  1 2 ... gives in that round of the cycle of {graph.cycle}, {_EVERY} in every one, {_MORE} in several"


def _mark(rounds: list[int], cycle: int) -> str:
    if not rounds:
        return _NEVER
    if len(rounds) == cycle:
        return _EVERY
    return _ROUNDS[rounds[0]] if len(rounds) == 1 and rounds[0] < len(_ROUNDS) else _MORE
