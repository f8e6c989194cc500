"""Closures under `all-reduce`: their losses are means of those who train, also when others have ended."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

STEPS = (5, 2)
"""The steps of each worker."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))
    loss: Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
    return loss


def train(world: quorate.World, *, closes: bool, **choice: Any) -> tuple[list[Tensor], list[float], list[float]]:
    """Parameters, what each step returned, and this worker's own losses."""
    model, returned, own = net(), list[float](), list[float]()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = quorate.distribute(optimizer, model, **choice)
    for step in range(STEPS[world.rank]):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, world.rank, step)
            loss.backward()
            own.append(float(loss.detach()))
            return loss

        if closes:
            returned.append(float(optimizer.step(closure).detach()))
        else:
            closure()
            optimizer.step()
    optimizer.finish()
    return [p.detach().clone() for p in model.parameters()], returned, own


@pytest.mark.parametrize("settings", [{}, {"on_death": "continue"}], ids=["all", "survivors"])
def test_those_that_train_on_when_others_have_ended_do_as_without_closures(settings: dict[str, Any]) -> None:
    plain = VirtualWorld(2).run(joined(lambda world: train(world, closes=False, **settings)))
    results = VirtualWorld(2).run(joined(lambda world: train(world, closes=True, **settings)))
    for (parameters, returned, own), (expected, _, losses) in zip(results, plain, strict=True):
        assert all(map(torch.equal, parameters, expected))
        assert own == losses
        means = [sum(each) / 2 for each in zip(results[0][2], results[1][2], strict=False)]
        assert returned == pytest.approx([*means, *own[len(means) :]])


def test_an_optimizer_that_decides_by_the_loss_does_not_go_on_without_them() -> None:
    @joined
    def live(world: quorate.World) -> str:
        model = net()
        optimizer: Any = quorate.distribute(torch.optim.LBFGS(model.parameters(), max_iter=3), model)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, world.rank, 0)
            loss.backward()
            return loss

        optimizer.step(closure)
        if world.rank == 0:
            with pytest.raises(ConfigurationError, match="^LBFGS asks for the loss of all workers, and some have none"):
                optimizer.step(closure)
            return "refused"
        optimizer.finish()
        return "ended"

    first, _ = VirtualWorld(2, timeout=5.0).outcomes(live)
    assert first.result == "refused", first
