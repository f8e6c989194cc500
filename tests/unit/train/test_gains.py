"""AdaScale among workers: its gain is what their gradients say, the same on all, and its schedule goes by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.optim import AdaScale
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZE = 4


def train(
    world: quorate.World, noise: float, strategy: str = "all-reduce", accumulation: int = 1, **settings: Any
) -> tuple[list[float], list[float], torch.Tensor]:
    """Gains, examples before each step, and parameters; a gradient is that of a bowl with so much noise."""
    p = nn.Parameter(torch.full((50,), 1.0, dtype=torch.float64))
    optimizer: Any = AdaScale([p], lr=0.01, momentum=0.5, smoothing=0.0)
    scheduler = quorate.schedule(optimizer, 1000, batch_size=2, decay="constant", warm_up="none")
    optimizer = quorate.distribute(optimizer, nn.ParameterList([p]), strategy, **settings)
    draw = torch.Generator().manual_seed(world.rank)
    gains, examples = [], []
    for _ in range(6):
        optimizer.zero_grad()
        examples.append(scheduler.examples)
        for part in range(accumulation):
            tilt = noise * torch.randn(50, generator=draw, dtype=torch.float64)
            if part < accumulation - 1:
                with optimizer.accumulate():
                    (p.square().sum() / 2 + (tilt * p).sum()).backward()
            else:
                (p.square().sum() / 2 + (tilt * p).sum()).backward()
        torch.nn.utils.clip_grad_norm_([p], 1.0)  # what is measured is from before it
        optimizer.step()
        scheduler.step()
        gains.append(optimizer.gain)
    optimizer.finish()
    return gains, examples, p.detach()


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 1.0, 1.0), (1.0, 1.2, 2.2), (100.0, 2.5, 4.0)])
def test_the_gain_goes_by_how_much_gradients_differ(noise: float, low: float, high: float, accumulation: int) -> None:
    results = VirtualWorld(SIZE).run(joined(lambda world: train(world, noise, accumulation=accumulation)))
    gains, examples, _ = results[0]
    least = 1.0 if accumulation == 3 else low  # as much noise counts less in a sum of three
    assert all(least - 1e-9 <= gain <= high + 1e-9 for gain in gains), gains
    for other in results:
        assert other[0] == gains and torch.equal(other[2], results[0][2])
    assert examples == pytest.approx([2 * sum(gains[:count]) for count in range(6)]), "a step counts as its gain"


def test_it_goes_on_among_the_survivors_sums() -> None:
    results = VirtualWorld(SIZE).run(joined(lambda world: train(world, 1.0, on_death="continue")))
    plain = VirtualWorld(SIZE).run(joined(lambda world: train(world, 1.0)))
    assert results[0][0] == pytest.approx(plain[0][0])


@pytest.mark.parametrize("strategy", ["eager-solo", "local-sgd", "d-psgd", "parameter-server"])
def test_strategies_without_a_mean_gradient_of_all_are_refused(strategy: str) -> None:
    with pytest.raises(ConfigurationError, match=f"and {strategy} forms no such mean; use all-reduce"):
        VirtualWorld(2).run(joined(lambda world: train(world, 1.0, strategy)))
