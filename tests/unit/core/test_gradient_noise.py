"""The noise scale and the diversity of gradients: unbiased, smoothed apart, and what follows from them."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from quorate.core.gradient_noise import (
    Smoothing,
    Squares,
    diversity,
    example_factor,
    gain,
    scale_of,
    step_factor,
)

GRADIENT = np.array([1.0, -2.0, 0.5, 0.0])
SIGMA = np.array([4.0, 1.0, 3.0, 6.0])
"""Of one example, by coordinate: |G|^2 is 5.25, the summed variance 62."""


def drawn(draws: np.random.Generator, gradients: int, batch: int) -> Squares:
    """Of one step: `gradients` workers with `batch` examples each."""
    every = GRADIENT + draws.normal(size=(gradients, len(SIGMA))) * SIGMA / math.sqrt(batch)
    mean = every.mean(axis=0)
    return Squares(gradients=gradients, own=float((every**2).sum(axis=1).mean()), mean=float(mean @ mean))


@pytest.mark.parametrize(("gradients", "batch"), [(2, 1), (2, 16), (5, 4), (16, 2)])
def test_signal_and_noise_are_unbiased(gradients: int, batch: int) -> None:
    draws = np.random.default_rng(gradients * 100 + batch)
    all_squares = [drawn(draws, gradients, batch) for _ in range(20_000)]
    for measured, true in (
        ([squares.signal for squares in all_squares], 5.25),
        ([squares.noise for squares in all_squares], 62 / batch),
    ):
        error = statistics.stdev(measured) / math.sqrt(len(measured))
        assert abs(statistics.fmean(measured) - true) < 4 * error
    scale = scale_of(
        statistics.fmean(squares.signal for squares in all_squares),
        statistics.fmean(squares.noise for squares in all_squares),
    )
    assert scale is not None and scale * batch == pytest.approx(62 / 5.25, rel=0.1)


def test_numerator_and_denominator_are_smoothed_apart() -> None:
    """The mean of the quotients is far off, where the signal of one step is hidden; the quotient of means is not."""
    draws, smoothing = np.random.default_rng(1), Smoothing(decay=0.999)
    all_squares = [drawn(draws, 4, 4) for _ in range(20_000)]
    for squares in all_squares:
        newest = smoothing.add(squares)
    assert newest.scale == pytest.approx(62 / 5.25 / 4, rel=0.15)
    quotients = statistics.fmean(squares.noise / squares.signal for squares in all_squares)
    assert abs(quotients - 62 / 5.25 / 4) > 0.3 * 62 / 5.25 / 4


def test_smoothing_is_a_weighted_mean() -> None:
    smoothing = Smoothing(decay=0.5)
    first, second = Squares(gradients=2, own=4.0, mean=3.0), Squares(gradients=2, own=10.0, mean=6.0)
    assert (first.signal, first.noise) == (2.0, 2.0)
    assert (second.signal, second.noise) == (2.0, 8.0)
    assert smoothing.add(first).scale == 1.0
    both = smoothing.add(second)
    assert both.signal == pytest.approx(2.0) and both.noise == pytest.approx((0.5 * 2 + 8) / 1.5)
    assert (both.own, both.mean) == (pytest.approx((0.5 * 4 + 10) / 1.5), pytest.approx((0.5 * 3 + 6) / 1.5))


@pytest.mark.parametrize(
    ("signal", "noise", "scale"),
    [
        (2.0, 8.0, 4.0),
        (2.0, -1.0, 0.0),
        (0.0, 8.0, None),
        (-1.0, 8.0, None),
        (math.nan, 1.0, None),
        (1.0, math.inf, None),
    ],
)
def test_no_scale_where_there_is_no_signal(signal: float, noise: float, scale: float | None) -> None:
    assert scale_of(signal, noise) == scale


def test_diversity_is_between_that_of_equal_and_of_orthogonal_gradients() -> None:
    assert diversity(1.0, 1.0, 4) == 0.25
    assert diversity(1.0, 0.25, 4) == 1.0
    assert diversity(1.0, 0.0, 4) == math.inf


def test_at_the_critical_batch_both_are_twice_the_least() -> None:
    assert step_factor(500.0, 500.0) == example_factor(500.0, 500.0) == 2.0
    for batch in (1.0, 64.0, 4096.0):  # the curve of equal progress: (S / S_min - 1) (E / E_min - 1) = 1
        assert (step_factor(500.0, batch) - 1) * (example_factor(500.0, batch) - 1) == pytest.approx(1.0)
    assert example_factor(0.0, 8.0) == math.inf


def test_what_a_larger_batch_still_brings() -> None:
    assert gain(1e9, 1.0) == pytest.approx(2.0)
    assert gain(0.0, 1.0) == 1.0
    assert gain(100.0, 100.0) == pytest.approx(4 / 3)
    assert gain(100.0, 100.0, 4.0) == pytest.approx(2 / 1.25)
