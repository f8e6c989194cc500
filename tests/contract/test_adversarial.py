"""Adversarial training composes with every strategy: it trains as on batches that were changed beforehand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import quorate
from tests.support.every_strategy import NAMES, OF_ONE_HOST
from tests.support.scene import Scene, Trainer, flat

SIZE, STEPS = 2, 4


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def trained(name: str, *, beforehand: bool) -> list[Tensor]:
    """The parameters and buffers at the end, by rank."""

    def loss_of(trainer: Trainer) -> Tensor:
        draw, model = torch.Generator().manual_seed(10 * trainer.step + trainer.rank), trainer.model
        x, y = torch.randn(6, 4, generator=draw), torch.randn(6, 2, generator=draw)
        if not beforehand:
            return quorate.adversarial(loss, epsilon=0.2, attack="fgsm", clean=0.0)(model, x, y)
        there = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(copy.deepcopy(model), there, y), there)
        return loss(model, x + ((x + 0.2 * gradient.sign()) - x), y)

    model = lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))  # noqa: E731
    scene = Scene(name, SIZE, model=model, rate=0.05 / (SIZE if name in OF_ONE_HOST else 1), steps=STEPS, loss=loss_of)
    return scene.run(lambda trainer: flat(trainer.model.state_dict().values()))


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_as_on_batches_that_were_changed_beforehand(name: str) -> None:
    for one, other in zip(trained(name, beforehand=False), trained(name, beforehand=True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
