"""What a rule of waiting allows: each way of agreeing, held against the fastest that its own rule could be.

A rule says whose numbers a worker needs before its step can end. `seconds_of_a_step` reckons with one undelayed step
and drawn delays; `share_reached` with the times that every worker of a run computed for in every step, as recorded, so
that noise of the machine counts on both sides. Messages take no time in either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorate.gossip.topology import topology_of
from quorate.report.reading.run import RunRecords

DRAWN = 4000
"""Steps over which a rule is reckoned out."""

Times = Sequence[float]
Needed = Callable[[int, int, Times, Times], float]
"""(rank, round, ends of the step before, arrivals in this one) -> when the last of what `rank` needs was given."""


@dataclass(frozen=True)
class Rule:
    """Whose numbers a worker needs."""

    words: str
    needed: Needed


def everyone(rank: int, round: int, before: Times, came: Times) -> float:
    """All workers of this step."""
    return max(came)


def nobody(rank: int, round: int, before: Times, came: Times) -> float:
    """None."""
    return came[rank]


def neighbours_a_step_back(topology: str, size: int) -> Needed:
    """Neighbours, what they gave at the end of the step before."""
    graph = topology_of(topology, size)

    def needed(rank: int, round: int, before: Times, came: Times) -> float:
        return max(before[edge.peer] for edge in graph.in_edges(rank, size, round))

    return needed


def givers(topology: str, size: int) -> Needed:
    """Who gives to this worker in this step."""
    graph = topology_of(topology, size)

    def needed(rank: int, round: int, before: Times, came: Times) -> float:
        return max(came[edge.peer] for edge in graph.in_edges(rank, size, round))

    return needed


def seconds_of_a_step(rule: Rule, size: int, step: float, delay: float) -> float:
    """Of `size` workers of which one, drawn, is late by `delay` in every step that takes `step` otherwise."""
    draw = random.Random(1)
    at = [0.0] * size
    for number in range(DRAWN):
        late = draw.randrange(size)
        came = [at[rank] + step + (delay if rank == late else 0.0) for rank in range(size)]
        at = [max(came[rank], rule.needed(rank, number, at, came)) for rank in range(size)]
    return sum(at) / size / DRAWN


def share_reached(rule: Rule, run: RunRecords) -> float:
    """Steps per second of `run`, of what they would be if each worker waited for just what the rule says.

    Each worker computes in each step for as long as it did. All have made equally many steps, unless nobody is needed.
    """
    warm = run.usual_warm_up
    steps = {one.rank: one.steps[warm:] for one in run.ranks}
    ranks = range(len(steps))
    began = [steps[rank][0].begin for rank in ranks]
    if rule.needed is nobody:
        own = [sum(s.end - s.begin - s.wait for s in steps[rank]) for rank in ranks]
        return _rate(run, [steps[rank][-1].end - steps[rank][0].begin for rank in ranks]) / _rate(run, own)
    at = list(began)
    for number in range(min(map(len, steps.values()))):
        row = [steps[rank][number] for rank in ranks]
        came = [at[rank] + row[rank].arrive - row[rank].begin for rank in ranks]
        after = [row[rank].end - row[rank].arrive - row[rank].wait for rank in ranks]
        last = [max(came[rank], rule.needed(rank, warm + number, at, came)) for rank in ranks]
        at = [last[rank] + max(0.0, after[rank]) for rank in ranks]
    count = min(map(len, steps.values()))
    took = [steps[rank][count - 1].end - began[rank] for rank in ranks]
    return sum(1 / one for one in took) / sum(1 / (end - begin) for end, begin in zip(at, began, strict=True))


def _rate(run: RunRecords, seconds: Sequence[float]) -> float:
    """Steps per second of all workers, each of which took so many seconds for its steps after the warm-up."""
    made = [len(one.steps) - run.usual_warm_up for one in run.ranks]
    return sum(n / s for n, s in zip(made, seconds, strict=True))
