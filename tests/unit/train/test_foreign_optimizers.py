"""Optimizers of other libraries: one that poses as a distributed one serves, others are refused by `distribute`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from tests.support.scene import Scene, Trainer, squares


class Posing:
    """A wrapper like that of Lightning's Fabric: of the class of the optimizer, without its state."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.__class__ = type("Posing" + type(optimizer).__name__, (Posing, type(optimizer)), {})

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


def train(wrap: Callable[[Any], Any]) -> list[torch.Tensor]:
    def begin(trainer: Trainer) -> None:
        trainer.optimizer = wrap(trainer.optimizer)
        assert isinstance(trainer.optimizer, torch.optim.SGD)

    def before(trainer: Trainer) -> None:
        if trainer.step == 2:
            trainer.optimizer.add_param_group({"params": trainer.model[1].parameters()})

    fields: Any = {"model": lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), "passes": 2}
    make = lambda ps: torch.optim.SGD([*ps][:2], lr=0.1)  # noqa: E731
    return Scene(size=2, make=make, loss=squares, begin=begin, before=before, **fields).ends()


def test_what_a_distributed_optimizer_has_works_through_one_that_poses_as_it() -> None:
    assert all(map(torch.equal, train(Posing), train(lambda optimizer: optimizer)))


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

    with pytest.raises(ConfigurationError, match=f"^Wrapper is what {name} puts around an optimizer; give quorate"):
        Scene(size=1, make=partial(Wrapper, lr=0.1)).run()


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("keras.src.optimizers.sgd", "^OfKeras is an optimizer of Keras, and .* call quorate.keras.distribute"),
        ("elsewhere", "^distribute takes a torch.optim.Optimizer, not OfKeras"),
    ],
)
def test_what_is_none_of_torchs_is_refused(package: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OfKeras, "__module__", package)

    with pytest.raises(ConfigurationError, match=words):
        Scene(size=1, make=lambda ps: OfKeras()).run()
