"""The row of a run's records that says how noisy gradients are."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise(Row):
    """How noisy gradients are, of one mean of them; written by the first rank that is left.

    See `core.gradient_noise`. Under a GradScaler all are times the square of its scale.
    """

    kind = "noise"
    step: int
    time: float
    optimizer: str
    gradients: int
    """In the mean."""
    own: float
    """The mean of their squared norms."""
    mean: float
    """The squared norm of their mean."""
    signal: float
    """The squared norm of the gradient without noise, smoothed; below 0 where noise hides it."""
    noise: float
    """The summed variance of one worker's gradient, smoothed."""
