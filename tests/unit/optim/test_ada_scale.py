"""The gain of AdaScale: by hand, unbiased on gradients of known spread, and without workers to compare it is SGD."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quorate.core.errors import ConfigurationError
from quorate.optim import AdaScale
from quorate.optim.ada_scale import Spread, spread_of


@pytest.mark.parametrize(
    ("variance", "square", "workers", "gain"),
    [(0.0, 4.0, 8, 1.0), (4.0, 0.0, 8, 8.0), (4.0, 4.0, 4, 1.6), (0.0, 0.0, 8, 1.0), (8.0, 2.0, 2, 10 / 6)],
)
def test_gains_by_hand(variance: float, square: float, workers: int, gain: float) -> None:
    assert Spread(variance, square).gain(workers) == pytest.approx(gain)


def test_what_gradients_say_is_unbiased() -> None:
    """1,000 numbers with variance 0.04 each around a vector of squared norm 10: 40 and 10."""
    draw = torch.Generator().manual_seed(0)
    true = torch.full((1000,), 0.1, dtype=torch.float64)
    spreads = []
    for _ in range(400):
        gradients = true + 0.2 * torch.randn(4, 1000, generator=draw, dtype=torch.float64)
        mean_square = float(gradients.square().sum(1).mean())
        spreads.append(spread_of(mean_square, float(gradients.mean(0).square().sum()), 4))
    assert sum(spread.variance for spread in spreads) / 400 == pytest.approx(40.0, rel=0.01)
    assert sum(spread.square for spread in spreads) / 400 == pytest.approx(10.0, rel=0.05)


def test_a_gain_multiplies_the_step_and_not_the_velocity() -> None:
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = AdaScale([p], lr=0.1, momentum=0.5, smoothing=0.0)
    wanted, velocity = 0.0, 0.0
    for variance in (0.0, 6.0, 2.0):
        optimizer.take_in(Spread(variance, 2.0), 4)
        gain = (variance + 2) / (variance / 4 + 2)
        assert optimizer.gain == pytest.approx(gain)
        p.grad = torch.ones(2, dtype=torch.float64)
        optimizer.step()
        velocity = 0.5 * velocity + 1
        wanted -= 0.1 * gain * velocity
        assert p.tolist() == pytest.approx([wanted] * 2)


def test_numerator_and_denominator_are_smoothed_apart() -> None:
    optimizer = AdaScale([nn.Parameter(torch.zeros(1))], lr=0.1, smoothing=0.5)
    optimizer.take_in(Spread(8.0, 2.0), 4)
    assert optimizer.gain == pytest.approx(10 / 4), "the first one counts alone"
    optimizer.take_in(Spread(2.0, -1.0), 4)  # means: (0.25 x 8 + 0.5 x 2) / 0.75 = 4, and 0
    assert optimizer.gain == pytest.approx(4.0)


def test_alone_it_is_sgd() -> None:
    def ends(kind: type[torch.optim.Optimizer]) -> torch.Tensor:
        p = nn.Parameter(torch.linspace(-1, 1, 7))
        optimizer = kind([p], lr=0.1, momentum=0.9, weight_decay=0.1)  # type: ignore[call-arg]
        for _ in range(5):
            p.grad = p.detach() ** 3
            optimizer.step()
        return p.detach()

    assert torch.equal(ends(AdaScale), ends(torch.optim.SGD))


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ConfigurationError, match="AdaScale: smoothing must be at least 0 and below 1, not 1"):
        AdaScale([nn.Parameter(torch.zeros(1))], lr=0.1, smoothing=1)
