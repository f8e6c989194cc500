"""Arguments that have to be equal on all workers are compared in `distribute`, and named, before any other exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.strategies import strategies
from tests.support.every_strategy import NAMES, OF_ADAM
from tests.support.scene import Scene, virtual

Make = Callable[[nn.Sequential, bool], torch.optim.Optimizer]


def refusals(make: Make, choice: Callable[[bool], dict[str, Any]], model: Callable[[bool], nn.Sequential]) -> list[str]:
    """Return the error of every worker of three, of which rank 2 calls `distribute` differently."""

    def live(world: quorate.World) -> str:
        built = model(world.rank == 2)
        with pytest.raises(ConfigurationError) as raised:
            quorate.distribute(make(built, world.rank == 2), built, **choice(world.rank == 2))
        return str(raised.value)

    return virtual(3, live, timeout=5.0)


def net(is_other: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def sgd(model: nn.Sequential, is_other: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def other_class(model: nn.Sequential, is_other: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1) if is_other else torch.optim.AdamW(model.parameters())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_ADAM])
def test_another_optimizer_is_named_under_every_strategy(name: str) -> None:
    said = refusals(other_class, lambda is_other: {"strategy": name}, net)
    assert (
        said
        == [
            "the optimizer is SGD on rank 2 and AdamW on rank 0; every worker must call quorate.distribute "
            "with the same arguments"
        ]
        * 3
    )


def more_groups(model: nn.Sequential, is_other: bool) -> torch.optim.Optimizer:
    groups = [{"params": layer.parameters()} for layer in model]
    return torch.optim.SGD(groups if is_other else model.parameters(), lr=0.1)


def other_order(model: nn.Sequential, is_other: bool) -> torch.optim.Optimizer:
    every = list(model.parameters())
    return torch.optim.SGD(every[::-1] if is_other else every, lr=0.1)


def some_frozen(model: nn.Sequential, is_other: bool) -> torch.optim.Optimizer:
    model[0].requires_grad_(not is_other)
    return sgd(model, is_other)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (more_groups, "the number of parameter groups is 2 on rank 2 and 1 on rank 0"),
        (other_order, "parameter of the optimizer 0 is 0.weight .* in group 0 on rank 0 and 1.bias .* on rank 2"),
        (some_frozen, "different models: parameter 0 is 0.weight .* on rank 0 and 1.weight .* on rank 2"),
    ],
)
@pytest.mark.parametrize("name", ["all-reduce", "eager-majority", "d-psgd"])
def test_other_groups_are_named(name: str, make: Make, words: str) -> None:
    said = refusals(make, lambda is_other: {"strategy": name}, net)
    with pytest.raises(ConfigurationError, match=words):
        raise ConfigurationError(said[0])
    assert len(set(said)) == 1


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (lambda is_other: {"strategy": "quorum" if is_other else "sgp"}, "the strategy is Quorum on rank 2 and SGP on"),
        (
            lambda is_other: {"strategy": "slowmo", "alpha": 1.5 + is_other},
            "the setting alpha is 2.5 on rank 2 and 1.5",
        ),
        (lambda is_other: {"on_nonfinite": "skip" if is_other else "warn"}, "on_nonfinite is skip on rank 2 and warn"),
        (lambda is_other: {"compare_every": 5 + is_other}, "compare_every is 6 on rank 2 and 5 on rank 0"),
    ],
)
def test_other_choices_are_named(choice: Callable[[bool], dict[str, Any]], words: str) -> None:
    said = refusals(sgd, choice, net)
    assert all(sentence.startswith(words) for sentence in said), said


def test_other_models_are_named_down_to_their_buffers() -> None:
    def wider(is_other: bool) -> nn.Sequential:
        return nn.Sequential(nn.Linear(3, 4 if is_other else 2), nn.Linear(2, 1))

    def with_buffer(is_other: bool) -> nn.Sequential:
        model = net(is_other)
        model.register_buffer("seen", torch.zeros(5 if is_other else 4))
        return model

    (said,) = set(refusals(sgd, lambda is_other: {}, wider))
    assert "parameter 0 is 0.weight torch.float32 (2, 3)" in said
    assert "and 0.weight torch.float32 (4, 3)" in said
    (said,) = set(refusals(sgd, lambda is_other: {}, with_buffer))
    assert "further tensor of the model 0 is seen torch.float32 (4,) on rank 0 and seen torch.float32 (5,)" in said


def test_a_strategy_is_the_same_by_name_and_as_an_object() -> None:
    def live(world: quorate.World) -> float:
        chosen = "local-sgd" if world.rank else strategies.get("local-sgd")()
        return Scene(chosen, model=lambda: net(False), rate=0.1).trainer(world).rate

    assert virtual(3, live) == [0.1] * 3
