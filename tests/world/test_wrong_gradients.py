"""Wrong gradients, and late ones, among real processes: the strategies that bear them end where they should."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quorate
from quorate.launch.worker.world import World
from tests.support.processes import run_real_world

STEPS = 12


def train(wrong: bool, late: bool, settings: dict[str, Any], world: World) -> list[Tensor]:
    """The parameters at the end; rank 2 is `wrong`, or `late`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = quorate.distribute(optimizer, model, on_nonfinite="ignore", **settings)
    for p in model.parameters():
        if wrong and world.rank == 2:
            p.register_hook(lambda g: -1e4 * g)
    x = torch.randn(4 * STEPS * world.size, 8, generator=torch.Generator().manual_seed(1))
    for inputs, targets in quorate.shard(TensorDataset(x, x.sum(1, keepdim=True)), 4, seed=0):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        if late and world.rank == 2:
            time.sleep(0.02)  # lateness is what is tried
        optimizer.step()
    optimizer.finish()
    return [p.detach().clone() for p in model.parameters()]


def one(size: int, wrong: bool, late: bool, **settings: Any) -> list[Tensor]:
    found = run_real_world(size, partial(train, wrong, late, settings), 60.0)
    assert all(
        torch.equal(x.nan_to_num(), y.nan_to_num()) for other in found for x, y in zip(other, found[0], strict=True)
    )
    return found[0]


def apart(x: list[Tensor], y: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(x, y, strict=True))


def test_draco_ends_where_it_ends_without_wrong_ones() -> None:
    free = one(3, False, False, strategy="draco", s=1)
    assert apart(one(3, True, False, strategy="draco", s=1), free) == 0.0
    cyclic = one(3, False, False, strategy="all-reduce")
    assert apart(one(3, True, False, strategy="draco", code="cyclic", s=1), cyclic) < 1e-4


def test_gradient_coding_ends_where_all_reduce_does_without_the_latest() -> None:
    wanted = one(3, False, False, strategy="all-reduce")
    assert apart(one(3, False, True, strategy="gradient-coding", code="cyclic", s=1), wanted) < 1e-4


def test_what_is_absurd_is_left_out_and_a_quorum_has_a_rule() -> None:
    free = one(4, False, False)
    assert apart(one(4, True, False, on_anomaly="skip"), free) < 0.5
    assert apart(one(4, True, False, strategy="quorum", wait_for=3, reduce="median:f=1"), free) < 0.5
    assert not apart(one(4, True, False), free) < 100
