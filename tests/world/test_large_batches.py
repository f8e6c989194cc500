"""A recipe for large batches on real workers: batch norm over all, AdaScale, a schedule, beside checkpointing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quorate
from quorate.optim import AdaScale
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.processes import run_real_world

SIZE, STEPS = 3, 6


class Net(nn.Module):
    """With a batch norm inside a part that is calculated a second time in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=0.2), nn.Tanh())
        self.last = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(checkpoint(self.inner, x, use_reentrant=False))
        return found


def trained(world: Any) -> tuple[list[Tensor], list[float], list[float]]:
    """Parameters and buffers, gains and rates."""
    torch.set_num_threads(1)
    model = quorate.sync_batch_norm(Net().double())
    optimizer: Any = AdaScale(quorate.parameter_groups(model, 1e-3), lr=0.05, momentum=0.9)
    scheduler = quorate.schedule(optimizer, 60, batch_size=5, warm_up_examples=10)
    optimizer = quorate.distribute(optimizer, model)
    gains, rates = [], []
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(10 * step + world.rank)
        x = torch.randn(5, 4, generator=draw, dtype=torch.float64)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        gains.append(optimizer.gain)
    optimizer.finish()
    return [x.detach() for x in model.state_dict().values()], gains, rates


def test_real_workers_train_as_virtual_ones() -> None:
    found = run_real_world(SIZE, trained, 60.0)
    wanted = VirtualWorld(SIZE).run(joined(trained))
    for (tensors, gains, rates), (others, other_gains, other_rates) in zip(found, wanted, strict=True):
        assert gains == other_gains == found[0][1] and rates == other_rates
        assert min(gains) > 1 and max(gains) <= SIZE
        for x, y in zip(tensors, others, strict=True):
            torch.testing.assert_close(x, y)
