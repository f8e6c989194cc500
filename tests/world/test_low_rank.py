"""Low rank in real processes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from tests.support.scene import Scene, Trainer, net


def model() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 8, 3), nn.Flatten(), net(32, 16, 16, 3))


def begin(trainer: Trainer) -> None:
    quorate.shrink.low_rank(trainer.optimizer, share=0.25, layers=["2.0", "2.[2]"], at=4)


def loss(trainer: Trainer) -> torch.Tensor:
    x = torch.randn(4, 1, 6, generator=torch.Generator().manual_seed(10 * trainer.step + trainer.rank))
    return (trainer.model(x) - x[:, 0, :3]).square().mean()


@pytest.mark.parametrize("name", ["all-reduce", "diloco", "eager-majority", "d-psgd", "hogwild"])
def test_processes_go_on_from_equal_factors(name: str) -> None:
    settings: dict[str, Any] = {"sync_every": 2} if name == "diloco" else {}
    make = partial(torch.optim.Adam, lr=0.01)
    scene = Scene(name, 2, model=model, make=make, loss=loss, begin=begin, steps=9, settings=settings)
    first, second = scene.ends(real=True)
    full = sum(p.numel() for p in model().parameters())
    assert torch.equal(first, second) and len(first) == full - (16 * 32 - 4 * 48) - (16 * 16 - 4 * 32)
