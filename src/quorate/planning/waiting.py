"""What workers that wait for each other take more than one alone, by how steps of one have varied. Pure.

Seconds of n workers are taken to vary on their own, as timed steps do, of which F(x) is the share that takes at most x.
The slowest of n takes at most x with the probability F(x)^n, so in half of all steps at most x where F(x) = 2^(-1/n).
No step is taken to be longer than the longest that was timed, so that for many workers it is a lower bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from quorate.planning.layouts import Layout

SYNC_EVERY = 8
"""Steps between means of `local-sgd`, by default."""
NEIGHBOURS = 2
"""Of a worker in the ring of `d-psgd`."""
_AROUND = 2
"""Steps before and behind one with which it is compared."""


def spread_of(runs: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of steps of runs side by side, each over the median of those around it in all runs, from the shortest on:
    what slows down all workers for a while is no reason to wait for one of them."""
    found = []
    for run in runs:
        for place, seconds in enumerate(run):
            around = [x for other in runs for x in other[max(0, place - _AROUND) : place + _AROUND + 1]]
            usual = statistics.median(around)
            found += [seconds / usual] if usual > 0 else []
    return sorted(found)


def slowest(spread: Sequence[float], workers: int) -> float:
    """How many times the usual seconds the slowest of so many workers takes, in half of all steps; `spread` as of
    `spread_of`, and 1 without any."""
    if not spread or workers < 2:
        return 1.0
    place = 2 ** (-1 / workers) * (len(spread) - 1)
    below = math.floor(place)
    above = min(below + 1, len(spread) - 1)
    return spread[below] + (place - below) * (spread[above] - spread[below])


def waited(layout: Layout, spread: Sequence[float]) -> float:
    """The share of its own seconds that a step of a layout waits for slower workers, in the mean of many steps.

    Workers that have pieces of one replica wait for each other in each step. Replicas do likewise under `all-reduce`,
    for two neighbours under `d-psgd`, and not at all under a quorum of half of them; what `local-sgd` waits for, every
    eighth step, is a sum of eight, which varies by the square root of eight less.
    """
    inside = layout.workers // layout.replicas
    most = {"d-psgd": min(layout.replicas, NEIGHBOURS + 1) * inside, "quorum": inside}.get(
        layout.strategy, layout.workers
    )
    each, all_of_them = slowest(spread, inside) - 1, slowest(spread, most) - 1
    return each + (all_of_them - each) / (math.sqrt(SYNC_EVERY) if layout.strategy == "local-sgd" else 1.0)
