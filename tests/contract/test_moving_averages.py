"""The mean of all workers' moving averages is the average of the mean replica, where replicas differ."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import quorate
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZE, STEPS, DECAY = 3, 8, 0.8


@pytest.mark.parametrize("strategy", ["local-sgd", "d-psgd", "all-reduce"])
def test_the_mean_in_an_evaluation_is_that_of_the_mean_replica(strategy: str) -> None:
    def train(world: quorate.World) -> tuple[list[Tensor], Tensor, Tensor]:
        torch.manual_seed(world.rank)
        model = nn.Linear(3, 1, bias=False)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
        optimizer = quorate.distribute(plain, model, strategy)
        replicas = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.full((1, 3), 1.0 + world.rank)).square().mean().backward()
            optimizer.step()
            averaged.update_parameters(model)
            replicas.append(model.weight.detach().clone())
        with world.evaluate(), torch.no_grad():
            own = averaged.module.weight.clone()
            mean = world.mean(averaged.module.weight)
        optimizer.finish()
        return replicas, own, mean

    ends = VirtualWorld(SIZE, seed=2).run(joined(train))
    expected: Tensor | None = None
    for every in zip(*(replicas for replicas, _, _ in ends), strict=True):
        replica = torch.stack(every).mean(0)
        expected = replica if expected is None else DECAY * expected + (1 - DECAY) * replica
    assert all(torch.equal(mean, ends[0][2]) for _, _, mean in ends)
    torch.testing.assert_close(ends[0][2], expected)
    assert torch.equal(ends[0][1], ends[1][1]) == (strategy == "all-reduce"), "each worker's own average"
