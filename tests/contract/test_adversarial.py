"""Adversarial training composes with every strategy: it trains as on batches that were changed beforehand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import NAMES, OF_ONE_HOST
from tests.support.joined import joined

SIZE, STEPS = 2, 4


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def trained(name: str, *, beforehand: bool) -> list[Tensor]:
    """The parameters at the end, by rank."""

    @joined
    def live(world: quorate.World) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))
        plain = torch.optim.SGD(model.parameters(), lr=0.05 / (world.size if name in OF_ONE_HOST else 1))
        optimizer: Any = quorate.distribute(plain, model, name)
        settings: dict[str, Any] = {"epsilon": 0.2, "attack": "fgsm", "clean": 0.0}
        draw = torch.Generator().manual_seed(world.rank)
        for _ in range(STEPS):
            x, y = torch.randn(6, 4, generator=draw), torch.randn(6, 2, generator=draw)
            optimizer.zero_grad()
            if beforehand:
                other = copy.deepcopy(model)
                there = x.clone().requires_grad_()
                (gradient,) = torch.autograd.grad(loss(other, there, y), there)
                loss(model, x + ((x + 0.2 * gradient.sign()) - x), y).backward()
            else:
                quorate.adversarial(loss, **settings)(model, x, y).backward()
            optimizer.step()
        optimizer.finish()
        return torch.cat([p.detach().reshape(-1) for p in model.state_dict().values()])

    return VirtualWorld(SIZE, seed=1).run(live)


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_as_on_batches_that_were_changed_beforehand(name: str) -> None:
    for one, other in zip(trained(name, beforehand=False), trained(name, beforehand=True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
