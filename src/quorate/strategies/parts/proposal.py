"""Which strategy brings a training on fastest, by what its workers have measured: a pure function.

The unit is the seconds for the progress of one fresh gradient, as in `rounds.choice.choosing`. Noise B is in gradients
of one worker, and one step of staleness costs a share a of progress where there is no noise. With mean work w_i of each
worker, the seconds x that an exchange adds to a step, and the seconds s of a synchronous step,

    all-reduce:   s / P
    local steps:  (max w_i + x / H) / P  (1 + a (H - 1) / 2 (P - 1) / (P + B))
    quorum of k:  the cost of its replay, with the workers' steps in order.

Within H local steps a replica lacks the (P - 1) / P of the gradients that others compute, for (H - 1) / 2 steps on
average, which counts as staleness. Uneven steps of workers even out between two means, so the slowest mean counts.

Workers gather the measures of their steps between two pauses as rows of numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from quorate.core.device_copies import values_of
from quorate.core.gradient_noise import Squares, scale_of
from quorate.core.vectors import Flat
from quorate.rounds.choice.choosing import cost, forecast, quorums

NEWEST, LEAST, EVERY = 24, 4, 8
"""The newest steps of a worker whose seconds are gathered, their least number, and steps between two of norms."""
Rows = Sequence[Sequence[float]]


@dataclass
class Measures:
    """The measures of one worker since the last pause."""

    work: list[float] = field(default_factory=list)
    """Seconds of each step, without waits."""
    waited: list[float] = field(default_factory=list)
    """Seconds of waits in exchanges with all."""
    squares: list[tuple[float, float]] = field(default_factory=list)
    """The squared norms of this worker's gradient, and of the mean."""

    @property
    def is_sample(self) -> bool:
        """Whether the norms of the newest step are measured."""
        return len(self.work) % EVERY == 1

    @property
    def row(self) -> list[float]:
        """Whether there are enough, the mean wait, the mean squares, and the seconds of the newest steps."""
        if len(self.work) < LEAST or not self.waited:
            return [0.0] * (4 + NEWEST)
        squares = [statistics.fmean(column) for column in zip(*self.squares, strict=True)] or [0.0, 0.0]
        work = [self.work[place % len(self.work)] for place in range(-NEWEST, 0)]
        return [1.0, statistics.fmean(self.waited), *squares, *work]


def work_in(rows: Rows) -> list[Sequence[float]]:
    """Return the seconds of each worker's newest steps."""
    return [row[4:] for row in rows]


def exchange_in(rows: Rows) -> float:
    """Return the seconds of an exchange: the worker that all wait for waits for the network alone."""
    return min(row[1] for row in rows)


def step_in(rows: Rows) -> float:
    """Return the seconds of a step in which all meet."""
    return statistics.fmean(row[1] + statistics.fmean(row[4:]) for row in rows)


def noise_in(rows: Rows) -> float:
    """Return the noise scale, in gradients of one worker; infinite where no signal is visible."""
    own, mean = (statistics.fmean(row[place] for row in rows) for place in (2, 3))
    if len(rows) < 2:
        return math.inf
    squares = Squares(gradients=len(rows), own=own, mean=mean)
    scale = scale_of(squares.signal, squares.noise)
    return math.inf if scale is None else scale


def square_of(x: Flat) -> float:
    """Return the squared norm of a vector. Cost: one pass."""
    return sum(norm**2 for norm in values_of([torch.linalg.vector_norm(part) for part in x.bare().parts]))


ALL_REDUCE, LOCAL = "all-reduce", "local-sgd"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The measures of a run since its last pause."""

    work: Sequence[Sequence[float]]
    """The seconds of each worker's newest steps, without waits."""
    exchange: float
    """The seconds that an exchange adds to a step, without waits for slow workers."""
    step: float
    """The seconds of a step in which all workers meet."""
    noise: float
    """B; infinite where gradients are nothing but noise."""


@dataclass(frozen=True)
class Proposal:
    """A strategy with its settings, and the reason in words."""

    strategy: str
    why: str


def costs(seen: Seen, *, local_steps: int, lateness: float) -> dict[str, float]:
    """Return the seconds per fresh gradient under each strategy."""
    size = len(seen.work)
    slowest = max(map(statistics.fmean, seen.work))
    late = lateness * (local_steps - 1) / 2 * (size - 1) / (size + seen.noise)
    known = {ALL_REDUCE: seen.step / size, LOCAL: (slowest + seen.exchange / local_steps) / size * (1 + late)}
    for wait_for in quorums(size)[:-1]:
        expected = forecast(seen.work, wait_for, seen.exchange)
        known[f"quorum:wait_for={wait_for}"] = cost(expected, size, seen.noise, lateness)
    return known


def propose(seen: Seen, now: str, *, local_steps: int, lateness: float, margin: float) -> Proposal:
    """Return the strategy of the lowest cost; that of `now` if no other one's is lower by the share `margin`."""
    known = costs(seen, local_steps=local_steps, lateness=lateness)
    best = min(known, key=lambda strategy: known[strategy])
    if known[best] > known[now] * (1 - margin):
        best = now
    means = list(map(statistics.fmean, seen.work))
    why = (
        f"a step takes {seen.step:.3g} s, of which workers compute {min(means):.3g} to {max(means):.3g} s and exchange "
        f"{seen.exchange:.3g} s; the noise is {seen.noise:.3g} gradients. For the progress of a gradient "
        + ", ".join(f"{name} needs {known[name]:.3g} s" for name in dict.fromkeys((now, best)))
    )
    return Proposal(f"{best}:sync_every={local_steps}" if best == LOCAL else best, why)
