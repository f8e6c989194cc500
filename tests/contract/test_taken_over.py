"""Under the class that scripts get as torch's DDP every strategy learns the bits of `quorate.distribute`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.launch.takeover.wrapper import DistributedDataParallel
from quorate.launch.worker.world import World
from quorate.train.chosen import chosen_in
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import NAMES, OF_ONE_HOST
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
    optimizer: Any = torch.optim.SGD(plain.parameters(), lr=0.02 / SIZE, momentum=0.9)
    if is_wrapped:
        chosen_in(current.here()).strategy_name = name
        model = DistributedDataParallel(plain)
    else:
        DistributedDataParallel(net())  # sends as many messages, so that strategies that go by the clock see the same
        optimizer = quorate.distribute(optimizer, plain, name)
    for number in range(STEPS):
        step(world, model, optimizer, number)
    optimizer.finish()
    return [x.detach().clone() for x in plain.state_dict().values()]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_ONE_HOST])
def test_bits_are_those_of_distribute(name: str) -> None:
    wrapped, plain = (
        VirtualWorld(SIZE, seed=3).run(joined(partial(trained, name, is_wrapped))) for is_wrapped in (True, False)
    )
    for ours, theirs in zip(wrapped, plain, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))
    assert not torch.equal(wrapped[0][0], net().state_dict()["0.weight"])


def evaluated(name: str, world: World) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters and buffers in an evaluation of all workers, and at the end."""
    chosen_in(current.here()).strategy_name = name
    plain = net()
    model = DistributedDataParallel(plain)
    optimizer: Any = torch.optim.SGD(plain.parameters(), lr=0.02 / SIZE, momentum=0.9)
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
