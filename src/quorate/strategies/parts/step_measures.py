"""Measures of a worker's steps between two pauses, which workers gather as rows of numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from quorate.core.device_copies import values_of
from quorate.core.gradient_noise import Squares, scale_of
from quorate.core.vectors import Flat

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
