"""Measures of workers of their own steps, which travel with gradients, for strategies that use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerMeasures:
    """The measures of one gradient, by the worker that has computed it."""

    work: float
    """Seconds from the end of the step before until it was there: the worker's own time, waiting for nobody."""
    waited: float | None
    """Seconds that the worker had waited in the step before; None where it had not waited for a round."""
    loss: float | None
    """The loss on which backward was called; None if it is not known (on a GPU, or scaled)."""
    square: float
    """Its squared Euclidean norm, times the same factor as in `Measured.square`."""


@dataclass(frozen=True)
class Measured:
    """The measures of one round; equal on all workers."""

    number: int
    wait_for: int
    """How many workers had to call for it."""
    gradients: int
    """That it has taken in."""
    measures: Sequence[tuple[int, WorkerMeasures]]
    """(rank, what it has told with a gradient), in order of rank; fewer than `gradients` after a checkpoint was
    loaded."""
    square: float
    """The squared Euclidean norm of the sum of these gradients, each divided by the number of workers."""
    smoothing: float = 1.0
    """How much of the noise of gradients is left in what was given, and in these squares: momentum takes some out."""
