"""What every registered strategy keeps: found here by its name, at every size, in the virtual world."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from quorate.core.strategy import Strategy
from quorate.strategies import strategies
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import NAMES, OF_ONE_HOST, optimizer_of
from tests.support.joined import joined
from tests.support.on_gpu import with_gpu
from tests.support.scene import Scene, Trainer, squares

SIZES = [1, 2, 3, 5]
STEPS = 6
Ends = list[list[torch.Tensor]]
"""The `numbers` of each worker, by rank."""


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def scene(name: str, size: int, *, uneven: bool = False, **settings: Any) -> Scene:
    """A short training from other numbers on every worker."""
    steps = [STEPS + uneven * 2 * rank for rank in range(size)]
    rate = 0.02 / (size if name in OF_ONE_HOST else 1)  # there each worker's momentum moves the numbers of all
    fields: dict[str, Any] = {"rate": rate, "heavy": 0.9, "steps": steps, "loss": squares, "seed": "rank"}
    return Scene(name, size, model=net, **fields, **settings)


def numbers(trainer: Trainer) -> list[torch.Tensor]:
    """Parameters, buffers and what the optimizer keeps.

    Under rounds of less than all the momentum is each worker's own, and the optimizer keeps none.
    """
    momenta = [x for p in trainer.model.parameters() for x in trainer.optimizer.state[p].values()]
    return [x.detach().cpu().clone() for x in (*trainer.model.state_dict().values(), *momenta)]


def test_strategies_are_found() -> None:
    assert "all-reduce" in NAMES
    assert all(issubclass(strategies.get(name), Strategy) for name in NAMES)
    assert all(strategies.summary(name) for name in NAMES)


def traced(name: str, uneven: bool, size: int) -> tuple[Ends, list[str]]:
    world = VirtualWorld(size, seed=3, is_traced=True)
    return world.run(joined(lambda w: numbers(scene(name, size, uneven=uneven).play(w)))), world.trace


first_traced = cache(traced)


class TestEveryStrategy:
    @pytest.mark.covering(("name", "uneven", "size"), list(product(NAMES, (True, False), SIZES)))
    def test_finish_leaves_equal_replicas(self, name: str, uneven: bool, size: int) -> None:
        ends = first_traced(name, uneven, size)[0]
        for end in ends:
            assert all(torch.equal(x, y) for x, y in zip(end, ends[0], strict=True))
            assert all(bool(torch.isfinite(x).all()) for x in end)

    @pytest.mark.covering(("name", "size"), product(NAMES, (2, 5)))
    def test_the_same_seed_gives_the_same_run(self, name: str, size: int) -> None:
        (first, trace), (again, of_again) = first_traced(name, True, size), traced(name, True, size)
        assert trace == of_again
        assert all(torch.equal(x, y) for x, y in zip(first[0], again[0], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_alone_every_strategy_is_bypassed(name: str) -> None:
    (end,) = scene(name, 1, with_one_worker="bypass").run(numbers)
    torch.manual_seed(0)
    model = net()
    optimizer = optimizer_of(name, model.parameters(), lr=0.02, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=torch.Generator().manual_seed(1000 * step))).square().mean().backward()
        optimizer.step()
    momenta = [x for p in model.parameters() for x in optimizer.state[p].values()]
    plain = [*model.state_dict().values(), *momenta]
    for x, y in zip(end, plain, strict=True):
        assert torch.equal(x, y.detach()) or (with_gpu() and torch.allclose(x, y, rtol=1e-2, atol=1e-3))
