"""The outer step of strategies with local steps: usual settings by period, and a report of those that overshoot."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from quorate.core.errors import ConfigurationError
from quorate.strategies.async_local_sgd import AsyncLocalSGD
from quorate.strategies.decoupled_diloco import DecoupledDiLoCo
from quorate.strategies.diloco import DiLoCo
from tests.support.ordinary_loops import Cell, ended

SIZE, STEPS = 4, 160


def least_squares(cell: Cell) -> float:
    """The squared distance from the solution after training with SGD and momentum."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    draw = torch.Generator().manual_seed(100 + cell.world.rank)
    solution = torch.linspace(-1.0, 1.0, 8)[:, None]
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    for _ in range(STEPS):
        x = torch.randn(8, 8, generator=draw)
        optimizer.zero_grad()
        mse_loss(model(x), x @ solution + torch.randn(8, 1, generator=draw)).backward()
        optimizer.step()
    optimizer.finish()
    return float((model.weight.detach().T - solution).square().sum())


@pytest.mark.parametrize("strategy", ["diloco", "decoupled-diloco", "async-local-sgd"])
@pytest.mark.parametrize("sync_every", [4, 16])
def test_short_periods_come_to_the_solution_in_silence(strategy: str, sync_every: int) -> None:
    endings = ended(least_squares, strategy, SIZE, sync_every=sync_every)
    assert max(endings.right()) < 0.6  # 3.4 at the beginning, thousands with the published outer step
    assert endings.told == ""


@pytest.mark.parametrize("strategy", ["diloco", "async-local-sgd"])
def test_outer_steps_after_which_the_loss_rises_are_reported_once(strategy: str) -> None:
    endings = ended(least_squares, strategy, SIZE, sync_every=4, outer_rate=0.7, outer_momentum=0.95)
    assert not min(endings.right()) < 1.0
    endings.told_once(
        r"the loss has risen to \S+ at step \d+, above the \S+ of the first period\. The last outer step moved "
    )


def test_several_optimizers_whose_losses_rise_in_turn_are_not_reported() -> None:
    def loop(cell: Cell) -> None:
        models = [torch.nn.Linear(4, 1) for _ in range(2)]
        optimizers = [
            cell.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, outer_rate=0.7, outer_momentum=0.95)
            for model in models
        ]
        for _ in range(60):
            for sign, model, optimizer in zip((1.0, -1.0), models, optimizers, strict=True):
                optimizer.zero_grad()
                (sign * model(torch.ones(2, 4))).mean().backward()
                optimizer.step()
        for optimizer in optimizers:
            optimizer.finish()

    endings = ended(loop, "diloco", sync_every=4)
    endings.right()
    assert endings.told == ""


def test_a_loss_that_grows_where_outer_steps_are_no_longer_than_the_movement_is_not_reported() -> None:
    def loop(cell: Cell) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.1, maximize=True), model)
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
        optimizer.finish()

    endings = ended(loop, "diloco", sync_every=4, outer_rate=1.0, outer_momentum=0.0)
    endings.right()
    assert endings.told == ""


@pytest.mark.parametrize("strategy", [DiLoCo, DecoupledDiLoCo])
@pytest.mark.parametrize(
    ("settings", "rate", "momentum"),
    [
        ({"sync_every": 500}, 0.7, 0.9),
        ({"sync_every": 300}, 0.7, 0.9),
        ({"sync_every": 299}, 1.0, 0.5),
        ({"sync_every": 10}, 1.0, 0.5),
        ({"sync_every": 9}, 1.0, 0.3),
        ({"sync_every": "30s"}, 1.0, 0.5),
        ({"sync_every": 20, "outer_momentum": 0.0}, 1.0, 0.0),
        ({"sync_every": 20, "outer_rate": 0.7}, 0.7, 0.5),
        ({"sync_every": 4, "outer": "adam"}, 0.7, 0.9),
        ({"sync_every": 4, "outer_gain": "measured"}, 0.7, 0.7),
    ],
    ids=str,
)
def test_settings_that_are_not_set(strategy: Any, settings: dict[str, Any], rate: float, momentum: float) -> None:
    outer = strategy(**settings).outer_optimizer
    assert (outer.rate, outer.momentum) == (rate, momentum)


@pytest.mark.parametrize("name", ["diloco", "decoupled-diloco", "async-local-sgd"])
@pytest.mark.parametrize("settings", [{"outer_rate": math.nan}, {"outer_momentum": 1.0}, {"outer_rate": 0.0}], ids=str)
def test_settings_that_no_outer_optimizer_can_have(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="the rate must be above 0"):
        {"diloco": DiLoCo, "decoupled-diloco": DecoupledDiLoCo, "async-local-sgd": AsyncLocalSGD}[name](**settings)
