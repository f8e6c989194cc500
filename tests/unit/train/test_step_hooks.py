"""Step hooks, the optimizer's own and torch's global ones, see the updates of the user's optimizer and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.support.every_strategy import NAMES, optimizer_of
from tests.support.scene import Scene, Trainer

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

    def make(ps: Any) -> torch.optim.Optimizer:
        optimizer: Any = optimizer_of(name, ps, lr=0.1, momentum=0.9)
        optimizer.own = []
        optimizer.register_step_post_hook(lambda *_: optimizer.own.append(1))
        return optimizer

    def updates(trainer: Trainer) -> tuple[int, int]:
        worker = trainer.worker
        rounds = worker.timer.rounds if worker.has_rounds and not worker.differs else STEPS
        return len(trainer.optimizer.own), rounds

    try:
        results = Scene(name, 2, model=(3, 1), make=make, steps=STEPS, settings=SETTINGS.get(name, {})).run(updates)
    finally:
        for handle in handles:
            handle.remove()
    assert [own for own, _ in results] == [updates for _, updates in results]
    assert before == after
    assert list(before.values()) == [sum(own for own, _ in results)]
