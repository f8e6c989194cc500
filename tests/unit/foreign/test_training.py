"""A mirror of foreign parameters: the same numbers as the optimizer of torch whose update it calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.core.errors import ConfigurationError
from quorate.foreign.optimizer import hand_back
from quorate.foreign.rule import Rule, RuleState
from quorate.foreign.training import ForeignTraining
from quorate.wire import current
from tests.support.scene import flat, virtual

STEPS = 6


class HeavyBall:
    """SGD with momentum, as a framework with state of its own would make it."""

    def __init__(self, parameters: Sequence[Tensor], rate: float | None = 0.05) -> None:
        self.rate, self.velocities = rate, [torch.zeros_like(p) for p in parameters]
        self.count = 0

    def update(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], factor: float) -> None:
        self.count += 1
        for place, (p, x) in enumerate(zip(parameters, gradients, strict=True)):
            if x is not None:
                self.velocities[place] = 0.5 * self.velocities[place] + x
                p.sub_((0.05 if self.rate is None else self.rate) * factor * self.velocities[place])

    def state(self) -> RuleState:
        return RuleState([{"velocity": v} for v in self.velocities], {"count": torch.tensor(self.count)})

    def take_state(self, state: RuleState) -> None:
        pairs = zip(state.by_parameter, self.velocities, strict=True)
        self.velocities = [own.get("velocity", velocity) for own, velocity in pairs]
        self.count = int(state.common["count"])

    def like(self, parameters: Sequence[Tensor]) -> Rule:
        return HeavyBall(parameters, self.rate)


def model_of() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def loss_of(model: Any, rank: int, step: int) -> Tensor:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def made(model: Any, strategy: str = "all-reduce", rate: float | None = 0.05, **settings: Any) -> ForeignTraining:
    named = [(name, p.detach()) for name, p in model.named_parameters()]
    return ForeignTraining(
        named, [], lambda ps: HeavyBall(ps, rate), kind="Heavy", strategy=strategy, settings=settings
    )


def train(training: ForeignTraining, model: Any, rank: int, begin: int = 0, end: int = STEPS) -> Tensor:
    """Train as a framework that has parameters of its own."""
    for step in range(begin, end):
        with torch.no_grad():
            for p, mirrored in zip(model.parameters(), training.parameters, strict=True):
                p.copy_(mirrored)
        loss = loss_of(model, rank, step)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        training.step([x.clone() for x in gradients], loss.detach())
    return flat(training.parameters)


def twin(world: quorate.World, strategy: str, **settings: Any) -> Tensor:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    optimizer = quorate.distribute(optimizer, model, strategy, **settings)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, world.rank, step).backward()
        optimizer.step()
    optimizer.finish()
    return flat(model)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("all-reduce", {}),
        ("quorum", {"wait_for": 1, "momentum": "common"}),
        ("diloco", {"sync_every": 2}),
        ("d-psgd", {}),
        ("parameter-server", {}),
        ("adaptive", {"momentum": "common"}),
    ],
)
def test_numbers_are_those_of_the_same_optimizer_in_torch(strategy: str, settings: dict[str, Any]) -> None:
    def both(world: quorate.World) -> tuple[Tensor, Tensor]:
        expected, training = twin(world, strategy, **settings), made(model_of(), strategy, **settings)
        train(training, model_of(), world.rank)
        training.optimizer.finish()
        return expected, flat(training.parameters)

    for expected, own in virtual(3, both):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)


def test_servers_go_on_where_the_state_is_handed_back_between_steps() -> None:
    """As Keras does before the framework looks at it; it is no state that a script has loaded."""

    def both(world: quorate.World) -> tuple[Tensor, Tensor]:
        expected, training = twin(world, "parameter-server"), made(model_of(), "parameter-server")
        for step in range(STEPS):
            train(training, model_of(), world.rank, begin=step, end=step + 1)
            hand_back(training.own)
        training.optimizer.finish()
        return expected, flat(training.parameters)

    for expected, own in virtual(3, both):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_state_is_in_checkpoints(size: int, tmp_path: Path) -> None:
    def both(world: quorate.World) -> tuple[Tensor, Tensor]:
        current.here().context(CheckpointContext).root = tmp_path
        unbroken = train(made(model_of()), model_of(), world.rank)
        training = made(model_of())
        train(training, model_of(), world.rank, end=3)
        quorate.save()
        train(training, model_of(), world.rank, begin=3, end=5)
        quorate.load()
        count = training.own.rule.count  # type: ignore[attr-defined]
        own = train(training, model_of(), world.rank, begin=3)
        assert count == 5 and training.own.rule.count == 6  # type: ignore[attr-defined]
        return unbroken, own

    for unbroken, own in virtual(size, both):
        assert torch.equal(own, unbroken)


def test_the_rate_of_the_optimizer_is_that_of_the_rule_or_a_factor_of_the_update() -> None:
    def both(world: quorate.World) -> list[Tensor]:
        ends = []
        for rate, option in ((0.05, 0.1), (None, 2.0)):
            training = made(model_of(), rate=rate)
            training.optimizer.param_groups[0]["lr"] = option
            ends.append(train(training, model_of(), world.rank))
        return ends

    for first, second in virtual(2, both):
        torch.testing.assert_close(first, second)


def test_gradients_are_not_copied_unless_they_share_their_memory() -> None:
    def has_own_memory(world: quorate.World) -> list[bool]:
        training = made(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "local-sgd", sync_every=9)
        x, bias = torch.ones(3, 3), torch.ones(3)
        training.step([x, bias, x, None])
        grads = [p.grad for p in training.parameters[:3]]
        ends = [p is not None and p.data_ptr() == own.data_ptr() for p, own in zip(grads, (x, bias, x), strict=True)]
        training.optimizer.finish()
        return ends

    assert virtual(2, has_own_memory) == [[True, True, False]] * 2


def test_what_others_keep_beside_the_state_stays() -> None:
    def keeps(world: quorate.World) -> bool:
        training = made(model_of())
        p = training.parameters[0]
        training.own.state[p]["note"] = torch.ones(())
        train(training, model_of(), world.rank, end=1)
        return "note" in training.own.state[p] and "velocity" in training.own.state[p]

    assert virtual(1, keeps) == [True]


def test_a_read_of_the_parameters_is_needed_only_when_others_than_the_update_wrote_them() -> None:
    def seen(world: quorate.World) -> list[bool]:
        training = made(model_of())
        train(training, model_of(), world.rank, end=1)
        after_update = training.stamp == training.updated
        with torch.no_grad():
            training.parameters[0].mul_(1.0)
        own = made(model_of(), "local-sgd", sync_every=2)
        train(own, model_of(), world.rank, end=1)
        return [after_update, training.stamp == training.updated, own.stamp == own.updated]

    assert virtual(2, seen) == [[True, False, False]] * 2


def test_a_name_stands_for_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import importlib.util
    import sys

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for module, words in (("jax", "JAX and optax"), ("keras", "Keras 3"), ("tf", "TensorFlow")):
        monkeypatch.delitem(sys.modules, f"quorate.{module}", raising=False)
        with pytest.raises(ConfigurationError, match=f"quorate.{module} needs {words}; install it with: pip install"):
            importlib.import_module(f"quorate.{module}")
