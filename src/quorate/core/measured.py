"""Measures of workers of their own steps, which travel with gradients, for strategies that use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerMeasures:
    """The measures of one gradient, by the worker that has computed it."""

    work: float
    """Seconds from the end of the step before to the gradient, without waits for other workers."""
    waited: float | None
    """Seconds that the worker waited in the step before; None where it did not wait for a round."""
    loss: float | None
    """The loss on which backward was called; None if it is not known (on a GPU, or scaled)."""
    square: float
    """Squared Euclidean norm of the gradient, times the same factor as in `Measured.square`."""


@dataclass(frozen=True)
class Measured:
    """The measures of one round; equal on all workers."""

    number: int
    wait_for: int
    """Number of workers that had to call for the round."""
    gradients: int
    """Number of gradients in the round."""
    measures: Sequence[tuple[int, WorkerMeasures]]
    """(rank, measurements sent with a gradient), in order of rank; fewer than `gradients` after a checkpoint was
    loaded."""
    square: float
    """The squared Euclidean norm of the sum of these gradients, each divided by the number of workers."""
    smoothing: float = 1.0
    """Share of the noise of gradients that is left in the vectors sent, and in these squares: momentum removes some."""
