"""The picture of `quorate explain NAME -n 4`: a topology's graph, steps of an all-reduce, or blocks of attention."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from quorate.cli.tables import text_table, wrapped
from quorate.core.errors import ConfigurationError
from quorate.core.topology import Topology
from quorate.gossip.topology import topology_of
from quorate.means import reducers
from quorate.report.wording import bytes_in_words

if TYPE_CHECKING:
    from quorate.means.algorithms.by_messages import ByMessages
    from quorate.means.algorithms.steps import Cost


MOST_DRAWN = 64
"""Workers up to which there is a picture."""
MOST_MEASURED = 1024
_ROUNDS = string.digits[1:] + string.ascii_lowercase
"""The characters for rounds in a picture."""
_BESIDE = 12
"""Characters beside the columns of a picture."""
_EVERY, _MORE, _NEVER, _OWN = "*", "+", ".", "\\"

_DIRECTIONS = ("both directions", "causal")

MOST_TOLD = 1024
_LATENCY, _BANDWIDTH = 50e-6, 1.25e9
"""Latency (s) and bandwidth (bytes/s) of the links in the figures: the defaults of virtual workers."""
_LENGTHS = {"1 kB": 1e3, "1 MB": 1e6, "100 MB": 1e8}
_LEGEND = (
    ("+2>3", "sends piece 2 to worker 3, which adds it to its own"),
    ("=2>3", "sends piece 2, of which the sum is complete, to worker 3, which takes it"),
)


@dataclass(frozen=True)
class Picture:
    """A picture as lines of text, and as JSON."""

    lines: list[str]
    as_json: dict[str, Any]
    """The field that it adds to the card."""


def picture(kind: str, text: str, workers: int, width: int) -> Picture | None:
    """Return the picture of `text`, a name with settings, of the family `kind`; None if it has no picture."""
    if kind == "topology":
        graph = drawn(text, workers)
        return Picture(list(lines(graph, width)), {"graph": asdict(graph)})
    if kind == "attention pattern":
        blocks = drawn_blocks(text, workers)
        costs = costs_of_blocks(text, workers)
        return Picture([*lines_of_blocks(text, blocks), *lines_of_costs(costs)], {"blocks": blocks, "costs": costs})
    steps = drawn_steps(text, workers) if kind == "reducer" else None
    return None if steps is None else Picture(list(lines_of_steps(steps, width)), {"steps": asdict(steps)})


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


def lines(graph: Drawn, width: int) -> Iterator[str]:
    """Yield the lines of the picture, if it fits, and of the figures below it."""
    ways = "one way" if graph.is_directed else "both ways"
    yield from wrapped(f"{graph.topology} among {graph.workers} workers: edges lead {ways}", width)
    if graph.workers <= min(MOST_DRAWN, width - _BESIDE):
        yield ""
        yield from _picture(graph, width)
    exact = (
        "never"
        if graph.exact_after is None
        else f"after {graph.exact_after} round{'s' if graph.exact_after > 1 else ''}"
    )
    to_1 = "never" if graph.rounds_to_1_percent is None else f"{graph.rounds_to_1_percent:.1f}"
    yield ""
    figures = {
        "rounds in a cycle": str(graph.cycle),
        "spectral gap, per round": f"{graph.gap:.4f}",
        "exact mean": exact,
        "rounds to 1 % of the distance": to_1,
        "messages of a worker": f"{graph.messages:g} a round, {graph.most_messages} at the busiest",
    }
    yield from text_table(list(figures.items()), width)


def _picture(graph: Drawn, width: int) -> Iterator[str]:
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
        legend = f"1 2 ... gives in that round of the cycle of {graph.cycle}, {_EVERY} in every one, {_MORE} in several"
        yield from wrapped(legend, width, "  ")


def _mark(rounds: list[int], cycle: int) -> str:
    if not rounds:
        return _NEVER
    if len(rounds) == cycle:
        return _EVERY
    return _ROUNDS[rounds[0]] if len(rounds) == 1 and rounds[0] < len(_ROUNDS) else _MORE


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One message of a step."""

    source: int
    to: int
    pieces: tuple[int, ...]
    adds: bool
    """Whether the receiver adds the pieces to its own; otherwise their sum is complete and replaces them."""


@dataclass(frozen=True, kw_only=True)
class DrawnSteps:
    """The steps and the cost of a reducer for a number of workers."""

    reducer: str
    workers: int
    pieces: int
    steps: tuple[tuple[Sent, ...], ...] | None
    """None for more than `MOST_DRAWN` workers."""
    cost: Cost


def drawn_steps(name: str, workers: int) -> DrawnSteps | None:
    """Return the steps of the reducer `name`; None for a reducer whose steps the wire chooses.

    Raises `ConfigurationError` for fewer than 1 worker, and more than `MOST_TOLD`.
    """
    if not 1 <= workers <= MOST_TOLD:
        raise ConfigurationError(f"-n is {workers}; an all-reduce can be shown for 1 to {MOST_TOLD} workers")
    if not hasattr(reducers.get(name), "steps"):
        return None
    algorithm = cast("type[ByMessages]", reducers.get(name))
    return DrawnSteps(
        reducer=name,
        workers=workers,
        pieces=algorithm.pieces(workers),
        steps=tuple(_steps(algorithm, workers)) if workers <= MOST_DRAWN else None,
        cost=algorithm.cost(workers),
    )


def _steps(algorithm: type[ByMessages], workers: int) -> Iterator[tuple[Sent, ...]]:
    by_rank = [algorithm.steps(workers, rank) for rank in range(workers)]
    for steps in zip(*by_rank, strict=True):
        yield tuple(
            Sent(source=rank, to=step.send.peer, pieces=tuple(step.send.pieces), adds=step.send.adds)
            for rank, step in enumerate(steps)
            if step.send is not None
        )


def lines_of_steps(drawn: DrawnSteps, width: int) -> Iterator[str]:
    """Yield the lines of a table of the steps, and of the figures below it."""
    cut = "in 1 piece" if drawn.pieces == 1 else f"in {drawn.pieces} pieces"
    among = f"{drawn.reducer} among {drawn.workers} worker{'s' if drawn.workers > 1 else ''}"
    yield from wrapped(f"{among}: the vector travels {cut}", width)
    if drawn.steps:
        yield ""
        yield from _table(drawn, drawn.steps, width)
        yield ""
        yield from text_table(_LEGEND, width)
    cost = drawn.cost
    yield ""
    terms = f"{cost.messages} alpha + {_figure(cost.moved)} n beta + {_figure(cost.added)} n gamma"
    times = ", ".join(f"{words} {_seconds(cost.seconds(n, _LATENCY, _BANDWIDTH))}" for words, n in _LENGTHS.items())
    figures = {
        "messages one after the other": str(cost.messages),
        "bytes out of one worker": f"{_figure(cost.sent)} n at most, for a vector of n bytes",
        "seconds, at most": terms,
        "with 50 us and 10 Gbit/s": times,
    }
    yield from text_table(list(figures.items()), width)


def _table(drawn: DrawnSteps, steps: tuple[tuple[Sent, ...], ...], width: int) -> Iterator[str]:
    cells = [{sent.source: _cell(sent) for sent in step} for step in steps]
    wide = max(len(cell) for row in cells for cell in row.values())
    wide = max(wide, len(str(drawn.workers - 1)))
    fitting = max(1, (width - 10) // (wide + 2))
    for begin in range(0, drawn.workers, fitting):
        if begin:
            yield ""
        ranks = range(begin, min(drawn.workers, begin + fitting))
        yield ("  worker  " + "".join(f"{rank:<{wide}}  " for rank in ranks)).rstrip()
        for number, row in enumerate(cells, start=1):
            yield (f"  step{number:>3} " + " ".join(f"{row.get(rank, '.'):<{wide}} " for rank in ranks)).rstrip()


def _cell(sent: Sent) -> str:
    first, last = sent.pieces[0], sent.pieces[-1]
    return f"{'+' if sent.adds else '='}{first if first == last else f'{first}-{last}'}>{sent.to}"


def drawn_blocks(text: str, count: int) -> dict[str, list[str]]:
    """Return lines of text by direction: `#` for each block of keys (column) of a block of queries (row).

    Raises `ConfigurationError` for a number of blocks that no screen shows, and for a wrong setting.
    """
    from quorate.attention.pattern import Blocks, block_mask, pattern_of

    if not 1 <= count <= MOST_DRAWN:
        raise ConfigurationError(f"-n is {count}; a pattern can be drawn for 1 to {MOST_DRAWN} blocks")
    masks = {words: block_mask(Blocks(pattern_of(text), count, words == "causal"))[0] for words in _DIRECTIONS}
    return {words: ["".join(".#"[seen] for seen in row) for row in mask.tolist()] for words, mask in masks.items()}


def lines_of_blocks(text: str, blocks: dict[str, list[str]]) -> Iterator[str]:
    """Yield the pictures side by side, and the share of blocks in each."""
    count = len(blocks["causal"])
    yield f"{text}: the blocks of keys (columns) of {count} blocks of queries (rows), in head 0 of layer 0"
    yield ""
    wide = max(count, *map(len, _DIRECTIONS))
    yield "  " + "   ".join(f"{words:<{wide}}" for words in _DIRECTIONS).rstrip()
    for row in zip(*blocks.values(), strict=True):
        yield "  " + "   ".join(f"{line:<{wide}}" for line in row).rstrip()
    yield ""
    shares = [sum(line.count("#") for line in lines) / count**2 for lines in blocks.values()]
    dense = (count + 1) / (2 * count)
    yield f"  {shares[0]:.0%} of all blocks; causal {shares[1]:.0%}, where dense attention has {dense:.0%}"


def costs_of_blocks(text: str, count: int) -> dict[str, float]:
    """Return the positions of so many blocks, and under a causal mask the scores of a head and their share of all."""
    from quorate.attention.costs import cost_of
    from quorate.attention.pattern import pattern_of

    positions = count * pattern_of(text).block
    cost = cost_of(text, positions, is_causal=True)
    return {"positions": positions, "scores": cost.scores, "share": cost.share}


def lines_of_costs(costs: dict[str, float]) -> Iterator[str]:
    """Yield the time and the memory."""
    positions = costs["positions"]
    yield f"  {positions:,} positions, causal: {costs['scores']:,.0f} scores for each head,"
    yield f"  {costs['share']:.2f} of those of dense attention, and the time of products in proportion"
    yield "  memory: query, key and value are kept for the backward pass, and no scores;"
    yield f"  scores that are written out would be {bytes_in_words(4 * positions**2)} for each head, in 32 bits"


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1.0 else f"{value:.3g} s"
