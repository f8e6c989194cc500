"""A model that a baseline keeps equal can be pickled and copied, and the copies are plain."""

from __future__ import annotations

import copy
import io
import pickle
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from quorate.launch.worker.baselines import ddp
from tests.support.processes import run_real_world


def copies(how: str, world: Any) -> list[float]:
    """The weights of a copy that was made, and used, between two steps; and those of the model after both."""
    torch.manual_seed(world.rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = []
    for step in range(2):
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            other = copied(how, model)
            if world.rank == 0:  # nobody is waited for
                other(torch.randn(4, 3)).sum().backward()
            weights.append(other[0].weight.sum().item())
    assert dist.is_initialized()
    return [*weights, model[0].weight.sum().item()]


def copied(how: str, model: Any) -> Any:
    if how == "copied":
        return copy.deepcopy(model)
    if how == "pickled":
        return pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_copies_are_plain_and_the_model_stays_in_step() -> None:
    for how in ("copied", "pickled", "saved"):
        first, second = run_real_world(2, partial(copies, how))
        assert first == second, how
