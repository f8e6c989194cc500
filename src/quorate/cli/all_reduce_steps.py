"""An algorithm of all-reduce, step by step, for `quorate explain ring -n 4`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from quorate.core.errors import ConfigurationError
from quorate.means import reducers

if TYPE_CHECKING:
    from quorate.means.algorithms.by_messages import ByMessages
    from quorate.means.algorithms.steps import Cost

MOST_DRAWN = 64
"""Workers up to which the steps are shown."""
MOST_TOLD = 1024
_LATENCY, _BANDWIDTH = 50e-6, 1.25e9
"""Latency (s) and bandwidth (bytes/s) of the links in the figures: the defaults of virtual workers."""
_LENGTHS = {"1 kB": 1e3, "1 MB": 1e6, "100 MB": 1e8}


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
    yield f"{drawn.reducer} among {drawn.workers} worker{'s' if drawn.workers > 1 else ''}: the vector travels {cut}"
    if drawn.steps:
        yield ""
        yield from _table(drawn, drawn.steps, width)
        yield ""
        yield "  +2>3  sends piece 2 to worker 3, which adds it to its own"
        yield "  =2>3  sends piece 2, of which the sum is complete, to worker 3, which takes it"
    cost = drawn.cost
    yield ""
    yield f"  messages one after the other  {cost.messages}"
    yield f"  bytes out of one worker       {_figure(cost.sent)} n at most, for a vector of n bytes"
    terms = f"{cost.messages} alpha + {_figure(cost.moved)} n beta + {_figure(cost.added)} n gamma"
    yield f"  seconds, at most              {terms}"
    times = ", ".join(f"{words} {_seconds(cost.seconds(n, _LATENCY, _BANDWIDTH))}" for words, n in _LENGTHS.items())
    yield f"  with 50 us and 10 Gbit/s      {times}"


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


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1.0 else f"{value:.3g} s"
