"""Optimizers of other libraries: one that poses as a distributed one serves, others are refused by `distribute`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


class Posing:
    """A wrapper like that of Lightning's Fabric: of the class of the optimizer, without its state."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.__class__ = type("Posing" + type(optimizer).__name__, (Posing, type(optimizer)), {})

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


def train(world: quorate.World, wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    plain = torch.optim.SGD(model[0].parameters(), lr=0.1)
    optimizer = wrap(quorate.distribute(plain, model))
    assert isinstance(optimizer, torch.optim.SGD)
    for step in range(6):
        if step == 2:
            optimizer.add_param_group({"params": model[1].parameters()})
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step + 10 * world.rank))
        with optimizer.accumulate():
            model(x).square().mean().backward()
        model(x + 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.finish()
    return [p.detach() for p in model.parameters()]


def test_what_a_distributed_optimizer_has_works_through_one_that_poses_as_it() -> None:
    plain = VirtualWorld(2).run(joined(lambda world: train(world, lambda optimizer: optimizer)))
    results = VirtualWorld(2).run(joined(lambda world: train(world, Posing)))
    for parameters, expected in zip(results, plain, strict=True):
        assert all(map(torch.equal, parameters, expected))


class Wrapper(torch.optim.SGD):
    """Made of torch's class, by a library."""


class OfKeras:
    pass


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("accelerate.optimizer", "Accelerate"),
        ("lightning.fabric.wrappers", "Lightning"),
        ("lightning_fabric.wrappers", "Lightning"),
        ("pytorch_lightning.core.optimizer", "Lightning"),
    ],
)
def test_what_libraries_put_around_an_optimizer_is_refused(
    package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrapper, "__module__", package)

    @joined
    def live(world: quorate.World) -> None:
        model = nn.Linear(3, 1)
        quorate.distribute(Wrapper(model.parameters(), lr=0.1), model)

    with pytest.raises(ConfigurationError, match=f"^Wrapper is what {name} puts around an optimizer; give quorate"):
        VirtualWorld(1).run(live)


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("keras.src.optimizers.sgd", "^OfKeras is an optimizer of Keras, and .* let train_step of the model step it"),
        ("elsewhere", "^distribute takes a torch.optim.Optimizer, not OfKeras"),
    ],
)
def test_what_is_none_of_torchs_is_refused(package: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OfKeras, "__module__", package)

    @joined
    def live(world: quorate.World) -> None:
        optimizer: Any = OfKeras()
        quorate.distribute(optimizer, nn.Linear(3, 1))

    with pytest.raises(ConfigurationError, match=words):
        VirtualWorld(1).run(live)
