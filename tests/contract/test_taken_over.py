"""Under the class that scripts get as torch's DDP every strategy learns the bits of `quorate.distribute`."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.launch.takeover.wrapper import DistributedDataParallel
from quorate.launch.worker.world import World
from quorate.strategies import strategies
from quorate.train.chosen import Chosen
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import NAMES, OF_ONE_HOST, OF_THE_SAME_BATCHES, optimizer_of
from tests.support.joined import joined

SIZE, STEPS = 3, 9


def net() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def step(world: World, model: nn.Module, optimizer: Any, number: int) -> None:
    drawn = torch.Generator().manual_seed(100 * number + world.rank)
    optimizer.zero_grad()
    model(torch.randn(6, 3, generator=drawn)).square().mean().backward()
    optimizer.step()


def trained(name: str, is_wrapped: bool, world: World) -> list[Tensor]:
    """Parameters and buffers after a training."""
    plain = model = net()
    optimizer: Any = optimizer_of(name, plain.parameters(), lr=0.02 / SIZE, momentum=0.9)
    if is_wrapped:
        current.here().context(Chosen).strategy_name = name
        model = DistributedDataParallel(plain)
    else:
        DistributedDataParallel(net())  # sends as many messages, so that strategies that go by the clock see the same
        optimizer = quorate.distribute(optimizer, plain, name)
    for number in range(STEPS):
        step(world, model, optimizer, number)
    optimizer.finish()
    return [x.detach().clone() for x in plain.state_dict().values()]


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_of_distribute(name: str) -> None:
    wrapped, plain = (
        VirtualWorld(SIZE, seed=3).run(joined(partial(trained, name, is_wrapped))) for is_wrapped in (True, False)
    )
    for ours, theirs in zip(wrapped, plain, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))
    assert not torch.equal(wrapped[0][0], net().state_dict()["0.weight"])


def evaluated(name: str, world: World) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters and buffers in an evaluation of all workers, and at the end."""
    current.here().context(Chosen).strategy_name = name
    plain = net()
    model = DistributedDataParallel(plain)
    optimizer: Any = optimizer_of(name, plain.parameters(), lr=0.02 / SIZE, momentum=0.9)
    seen = list[Tensor]()
    for number in range(STEPS):
        step(world, model, optimizer, number)
        if number == STEPS // 2:
            model.eval()
            seen = [x.detach().clone() for x in model.state_dict().values()]
            model.train()
    optimizer.finish()
    return seen, [x.detach().clone() for x in plain.state_dict().values()]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_ONE_HOST])
def test_an_evaluation_of_all_workers_has_the_agreed_model(name: str) -> None:
    workers = VirtualWorld(3, seed=3).run(joined(partial(evaluated, name)))
    for states in zip(*workers, strict=True):
        for state in states:
            assert all(torch.equal(x, y) for x, y in zip(state, states[0], strict=True))


DIFFERING = [name for name in NAMES if strategies.get(name).replicas in ("meet", "differ")]
ALIKE = ["auto", "parameter-server", "post-local-sgd", "sync-backup", "zero-one-adam"]
"""Those of them whose replicas do not differ yet after so few steps of workers that are equally fast."""


def kept(name: str, world: World) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Parameters by `state_dict()` of the wrapper and of its module outside of evaluations, and the replica's own."""
    current.here().context(Chosen).strategy_name = name
    plain = net()
    model = DistributedDataParallel(plain)
    optimizer: Any = optimizer_of(name, plain.parameters(), lr=0.02 / SIZE, momentum=0.9)
    states, own = list[list[Tensor]](), list[list[Tensor]]()
    for number in range(STEPS):
        step(world, model, optimizer, number)
        if number == 3:
            model.eval()
            model.train()
        elif number > 3:
            names = [name for name, _ in plain.named_parameters()]
            outside, inside = model.state_dict(), plain.state_dict()
            assert all(torch.equal(outside[f"module.{name}"], inside[name]) for name in names)
            states.append([inside[name].clone() for name in names])
            own.append([p.detach().clone() for p in plain.parameters()])
    optimizer.finish()
    assert all(torch.equal(plain.state_dict()[name], p) for name, p in plain.named_parameters())
    return states, own


@pytest.mark.parametrize("name", DIFFERING)
def test_a_state_outside_of_evaluations_is_the_newest_agreed_one(name: str) -> None:
    workers = VirtualWorld(3, seed=3).run(joined(partial(kept, name)))
    for of_step in zip(*(states for states, _ in workers), strict=True):
        for state in of_step:
            assert all(torch.equal(x, y) for x, y in zip(state, of_step[0], strict=True))
    replicas = [torch.cat([x.flatten() for x in own[-2]]) for _, own in workers]
    assert all(torch.equal(replica, replicas[0]) for replica in replicas) == (name in ALIKE)
    is_newest = all(torch.equal(x, y) for x, y in zip(workers[0][0][-2], workers[0][1][-2], strict=True))
    assert is_newest == (name in ("auto", "parameter-server", "post-local-sgd", "zero-one-adam"))


@pytest.mark.parametrize("name", OF_THE_SAME_BATCHES)
def test_strategies_of_equal_batches_are_refused_before_an_update(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"under {name} several workers compute the same batches, and a script"
    ):
        VirtualWorld(SIZE, seed=3).run(joined(partial(trained, name, True)))


def accumulated(name: str, ends: str, world: World) -> list[Tensor]:
    """Parameters after steps of two batches each, zeroed between forward and backward pass, and evaluations.

    `ends`: how an evaluation ends. As in Lightning, "by flags" of the modules in the wrapper, with steps of closures.
    """
    current.here().context(Chosen).strategy_name = name
    plain = net()
    model = DistributedDataParallel(plain)
    optimizer: Any = optimizer_of(name, plain.parameters(), lr=0.02)
    for number in range(12):
        inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(100 * number + world.rank))
        is_last = number % 2 == 1

        def closure(inputs: Tensor = inputs, is_last: bool = is_last) -> Tensor:
            loss: Tensor = model(inputs).square().mean()
            if not is_last:
                optimizer.zero_grad()
            loss.backward()
            if is_last:
                nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            return loss

        if is_last and ends == "by flags":
            optimizer.step(closure)
        else:
            with nullcontext() if is_last else model.no_sync():
                closure()
            if is_last:
                optimizer.step()
        if number % 4 == 3 and ends != "none":
            model.eval()
            for module in plain.modules() if ends == "by flags" else ():
                module.training = True
            if ends == "by call":
                model.train()
    optimizer.finish()
    return [x.detach().clone() for x in plain.parameters()]


@pytest.mark.parametrize("name", ["all-reduce", "local-sgd", "d-psgd"])
def test_accumulation_and_evaluation_as_in_lightning_have_the_bits_of_calls(name: str) -> None:
    def run(ends: str) -> list[list[Tensor]]:
        return VirtualWorld(2, seed=3).run(joined(partial(accumulated, name, ends)))

    flags, calls = run("by flags"), run("by call")
    for ours, theirs in zip(flags, calls, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(*flags, strict=True))
    if name == "all-reduce":
        assert all(torch.equal(x, y) for x, y in zip(flags[0], run("none")[0], strict=True))
