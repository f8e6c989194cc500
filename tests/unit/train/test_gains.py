"""AdaScale among workers: its gain is what their gradients say, the same on all, and its schedule goes by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.optim import AdaScale
from tests.support.scene import Scene, Trainer

SIZE = 4


def train(noise: float, strategy: str = "all-reduce", passes: int = 1, size: int = SIZE, **settings: Any) -> Any:
    """Gains, examples before each step, and parameters; a gradient is that of a bowl with so much noise."""
    draws = [torch.Generator().manual_seed(rank) for rank in range(size)]

    def make(ps: Any) -> AdaScale:
        optimizer = AdaScale([*ps], lr=0.01, momentum=0.5, smoothing=0.0)
        optimizer.examples = quorate.schedule(optimizer, 1000, batch_size=2, decay="constant", warm_up="none")
        return optimizer

    def begin(trainer: Trainer) -> None:
        trainer.schedule, trainer.gains = trainer.optimizer.examples, []

    def loss(trainer: Trainer) -> torch.Tensor:
        tilt = noise * torch.randn(50, generator=draws[trainer.rank], dtype=torch.float64)
        return trainer.model[0].square().sum() / 2 + (tilt * trainer.model[0]).sum()

    def between(trainer: Trainer) -> None:
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)  # what is measured is from before it

    def after(trainer: Trainer) -> None:
        trainer.schedule.step()
        trainer.gains.append(trainer.optimizer.gain)

    model = lambda: nn.ParameterList([torch.ones(50, dtype=torch.float64)])  # noqa: E731
    hooks: Any = {"begin": begin, "before": lambda t: t.seen.append(t.schedule.examples), "between": between}
    scene = Scene(strategy, size, model=model, make=make, loss=loss, passes=passes, after=after, **hooks, **settings)
    return scene.run(lambda t: (t.gains, t.seen, t.parameters))


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 1.0, 1.0), (1.0, 1.2, 2.2), (100.0, 2.5, 4.0)])
def test_the_gain_goes_by_how_much_gradients_differ(noise: float, low: float, high: float, accumulation: int) -> None:
    results = train(noise, passes=accumulation)
    gains, examples, _ = results[0]
    least = 1.0 if accumulation == 3 else low  # as much noise counts less in a sum of three
    assert all(least - 1e-9 <= gain <= high + 1e-9 for gain in gains), gains
    for other in results:
        assert other[0] == gains and torch.equal(other[2], results[0][2])
    assert examples == pytest.approx([2 * sum(gains[:count]) for count in range(6)]), "a step counts as its gain"


def test_it_goes_on_among_the_survivors_sums() -> None:
    assert train(1.0, on_death="continue")[0][0] == pytest.approx(train(1.0)[0][0])


@pytest.mark.parametrize("strategy", ["eager-solo", "local-sgd", "d-psgd", "parameter-server"])
def test_strategies_without_a_mean_gradient_of_all_are_refused(strategy: str) -> None:
    with pytest.raises(ConfigurationError, match=f"and {strategy} forms no such mean; use all-reduce"):
        train(1.0, strategy, size=2)
