"""Scripts that call `torch.distributed` themselves while rounds are under way."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import all_reduce

import quorate
from quorate.launch.world import World
from tests.support.processes import run_real_world

STEPS = 24


def logs_its_loss(world: World) -> list[float]:
    """A quorum of two of three; each worker may come last to the collective, and the others wait for it there."""
    model = torch.nn.Linear(4, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer: Any = quorate.distribute(plain, model, "eager-majority")
    found = []
    for step in range(STEPS):
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        time.sleep(0.05 if world.rank == 2 else 0.0)  # it comes to two steps while the others wait for it
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3:
            total = torch.tensor([1.0 + world.rank])
            dist.all_reduce(total)
            found.append(total.item())
        if step % 8 == 5:
            total = torch.tensor([2.0])
            work = all_reduce(total, async_op=True)
            assert work is not None and work.wait() and work.is_completed()
            said: list[Any] = [None] * world.size
            dist.all_gather_object(said, {"rank": world.rank})
            dist.barrier()
            found += [total.item(), sum(one["rank"] for one in said)]
    optimizer.finish()
    return found


def test_collectives_of_the_script_count_as_waiting() -> None:
    found = run_real_world(3, logs_its_loss, timeout=60.0)
    expected: list[float] = []
    for step in range(STEPS):
        expected += [6.0] if step % 4 == 3 else []
        expected += [6.0, 3] if step % 8 == 5 else []
    assert found == [expected] * 3
