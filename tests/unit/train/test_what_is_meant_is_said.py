"""The subject of a mean or an update follows from the call, not from the object that was passed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy, Worker
from quorate.wire.virtual import VirtualWorld
from tests.support.joined import joined


@dataclass(frozen=True, kw_only=True)
class Early(Strategy):
    """Agrees in the backward pass, by the call that overlaps."""

    def backward(self, worker: Worker) -> None:
        worker.gradient = worker.means.of_gradient().wait()

    def step(self, worker: Worker) -> None:
        worker.update()


@dataclass(frozen=True, kw_only=True)
class Wrong(Early):
    """Asks there for the mean of a copy."""

    def backward(self, worker: Worker) -> None:
        worker.gradient = worker.means.of(worker.gradient * 1.0).wait()


@dataclass(frozen=True, kw_only=True)
class Late(Strategy):
    """Agrees in the step, on a copy."""

    def step(self, worker: Worker) -> None:
        mean = worker.means.of(worker.gradient * 1.0, weight=worker.weight).wait()
        worker.update(mean)


def trained(world: quorate.World, strategy: Strategy, steps: int = 3) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 700))  # parts of several sizes
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, strategy)
    draw = torch.Generator().manual_seed(world.rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 700, generator=draw)).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_a_copy_of_the_gradient_has_the_same_mean() -> None:
    early, late = (
        VirtualWorld(2).run(joined(partial(trained, strategy=strategy)))[0] for strategy in (Early(), Late())
    )
    torch.testing.assert_close(early, late, rtol=0, atol=1e-7)


def test_another_mean_while_the_gradient_is_on_its_way_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"calls worker.means.of_gradient\(\) in it, before it forms other"):
        VirtualWorld(2).run(joined(partial(trained, strategy=Wrong())))
