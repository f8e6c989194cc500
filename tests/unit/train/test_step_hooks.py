"""Step hooks, the optimizer's own and torch's global ones, see the updates of the user's optimizer and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import quorate
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import NAMES
from tests.support.joined import joined

SETTINGS: dict[str, dict[str, Any]] = {
    "diloco": {"sync_every": 3, "outer": "adam"},
    "slowmo": {"slow_every": 2},
    "local-sgd": {"momentum": "average"},
}
STEPS = 8


@pytest.mark.parametrize("name", NAMES)
def test_global_hooks_see_each_update_of_the_users_optimizer_once(name: str) -> None:
    before, after = Counter[str](), Counter[str]()
    handles = [
        register_optimizer_step_pre_hook(lambda optimizer, *_: before.update([type(optimizer).__name__])),
        register_optimizer_step_post_hook(lambda optimizer, *_: after.update([type(optimizer).__name__])),
    ]

    @joined
    def live(world: quorate.World) -> tuple[int, int]:
        model, own = nn.Linear(3, 1), [0]
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.register_step_post_hook(lambda *_: own.append(1))
        quorate.distribute(optimizer, model, name, **SETTINGS.get(name, {}))
        worker = optimizer.__dict__["_quorate_worker"]
        for _ in range(STEPS):
            model(torch.randn(2, 3)).square().mean().backward()
            optimizer.step()
        current.here().leave()
        return sum(own), worker.timer.rounds if worker.has_rounds and not worker.differs else STEPS

    try:
        results = VirtualWorld(2).run(live)
    finally:
        for handle in handles:
            handle.remove()
    assert [own for own, _ in results] == [updates for _, updates in results]
    assert before == after == {"DistributedSGD": sum(own for own, _ in results)}
