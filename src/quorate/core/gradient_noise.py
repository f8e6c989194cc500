"""The gradient noise scale and gradient diversity, from squared norms of gradients. Pure functions; no torch.

Let n workers have computed gradients g_1 ... g_n at the same parameters, each on a batch of b examples, with mean m.
With G the gradient of the whole data and S the variance of the gradient of one example, summed over its coordinates,

    E |g_i|^2 = |G|^2 + S / b,        E |m|^2 = |G|^2 + S / (n b),

so two numbers, the mean of the |g_i|^2 and |m|^2, give unbiased estimates of |G|^2 (`Squares.signal`) and of S / b
(`Squares.noise`). The noise scale is S / |G|^2 examples, or (S / b) / |G|^2 gradients. The expectation of a quotient is
not the quotient of expectations: both are smoothed, and divided then.

Sources: McCandlish, Kaplan, Amodei et al., "An empirical model of large-batch training", 2018, section 2.2 and appendix
A.1 (noise scale), section 2.3 (steps and examples); Yin, Pananjady, Lam, Papailiopoulos, Ramchandran, Bartlett,
"Gradient diversity: a key ingredient for scalable distributed learning", AISTATS 2018, definition 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DECAY = 0.95
"""Weight of earlier measurements, relative to a new one, after each: some 20 of them count."""


@dataclass(frozen=True, kw_only=True)
class Squares:
    """Squared norms of the gradients in one mean, and of the mean."""

    gradients: int
    """Number of gradients; at least 2."""
    own: float
    """The mean of their squared Euclidean norms, weighted as the gradients are."""
    mean: float
    """The squared Euclidean norm of their mean."""

    @property
    def signal(self) -> float:
        """An unbiased estimate of |G|^2; it may be below 0."""
        return (self.gradients * self.mean - self.own) / (self.gradients - 1)

    @property
    def noise(self) -> float:
        """An unbiased estimate of the summed variance of one gradient, S / b."""
        return (self.own - self.mean) * self.gradients / (self.gradients - 1)


@dataclass(frozen=True, kw_only=True)
class Smoothed:
    """Means of the measurements, in which the newest counts most."""

    signal: float
    noise: float
    own: float
    mean: float

    @property
    def scale(self) -> float | None:
        """The noise scale, in gradients of one worker; None where no signal is visible."""
        return scale_of(self.signal, self.noise)


class Smoothing:
    """Exponentially weighted means of `Squares`, separate for numerators and denominators, unbiased at the start."""

    def __init__(self, decay: float = DECAY) -> None:
        self._decay, self._weight = decay, 0.0
        self._sums = [0.0, 0.0, 0.0, 0.0]

    def add(self, squares: Squares) -> Smoothed:
        """Add a measurement; return the means that include it."""
        self._weight = self._decay * self._weight + 1.0
        values = (squares.signal, squares.noise, squares.own, squares.mean)
        self._sums = [self._decay * before + x for before, x in zip(self._sums, values, strict=True)]
        signal, noise, own, mean = (x / self._weight for x in self._sums)
        return Smoothed(signal=signal, noise=noise, own=own, mean=mean)


def scale_of(signal: float, noise: float) -> float | None:
    """Return the noise scale; None where the signal is not above 0. Noise below 0 counts as none."""
    if not signal > 0 or not math.isfinite(signal) or not math.isfinite(noise):
        return None
    return max(0.0, noise) / signal


def diversity(own: float, mean: float, gradients: int) -> float:
    """Return Yin et al.'s sum |g_i|^2 / |sum g_i|^2; 1 / n where all gradients are equal, 1 where orthogonal."""
    return own / (gradients * mean) if mean > 0 else math.inf


def step_factor(scale: float, batch: float) -> float:
    """Return the steps of a training at `batch` relative to the fewest possible, S / S_min = 1 + scale / batch.

    Both are in the same unit, gradients or examples. McCandlish et al., equation 2.7 and 2.11, with E / S = batch.
    """
    return 1.0 + scale / batch


def example_factor(scale: float, batch: float) -> float:
    """Return its examples relative to the fewest possible, E / E_min = 1 + batch / scale; infinite without noise."""
    return 1.0 + batch / scale if scale > 0 else math.inf


def gain(scale: float, batch: float, times: float = 2.0) -> float:
    """Return the factor by which a batch `times` as large saves steps: from 1, nothing, to `times`."""
    return step_factor(scale, batch) / step_factor(scale, times * batch)
