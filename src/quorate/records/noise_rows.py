"""The row of the noise of gradients."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise(Row):
    """The noise of the gradients in one mean; written by the lowest living rank.

    See `core.gradient_noise`. Under a GradScaler all figures are multiplied by the square of its scale.
    """

    kind = "noise"
    step: int
    time: float
    optimizer: str
    gradients: int
    """Number of gradients in the mean."""
    own: float
    """The mean of their squared norms."""
    mean: float
    """The squared norm of their mean."""
    signal: float
    """The squared norm of the gradient without noise, smoothed; below 0 where noise hides it."""
    noise: float
    """The summed variance of one worker's gradient, smoothed."""
