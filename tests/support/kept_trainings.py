"""Small trainings that save, are cut off, and go on, among virtual workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.launch.worker.world import World
from quorate.wire import current
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

T = TypeVar("T")


def in_world(
    size: int, root: Path, task: Callable[[World], T], *, seed: int = 0, network: Network | None = None
) -> list[T]:
    """What `task` returns on every worker of a virtual world whose checkpoints are in `root`."""

    @joined
    def live(world: World) -> T:
        current.here().context(CheckpointContext).root = root
        current.here().context(CheckpointContext).listeners = current.here().context(CheckpointContext).listeners or [
            _fail
        ]
        return task(world)

    return VirtualWorld(size, seed=seed, network=network, timeout=120.0, generators=True).run(live)


def _fail(sentence: str) -> None:
    raise AssertionError(sentence)


def dataset(examples: int = 40) -> TensorDataset:
    draw = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(examples, 3, generator=draw), torch.randn(examples, 1, generator=draw))


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1))


@dataclass
class Told:
    """What one worker tells of its training."""

    state: list[torch.Tensor]
    """Parameters, buffers, and the optimizer's, flat."""
    seen: list[int]
    """Which examples it computed in this session, in order."""
    began: int | None
    draws: tuple[float, float, float]
    """What its generators give next."""
    learning_rate: float


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
}


def train(
    world: World,
    steps: int,
    *,
    saves: Callable[[int, int], bool] = lambda rank, step: False,
    optimizer: str = "adamw",
    is_scaled: bool = False,
    num_workers: int = 0,
    **choice: Any,
) -> Told:
    """Train up to `steps` steps in all; `saves(rank, step)` says where."""
    model = net(world.rank)
    plain = OPTIMIZERS[optimizer](model.parameters())
    distributed: Any = quorate.distribute(plain, model, **choice)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(plain, max_lr=0.05, total_steps=60)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3, enabled=is_scaled)
    data = dataset()
    loader = quorate.loader(
        TensorDataset(torch.arange(len(data)), *data.tensors), batch_size=2, seed=5, num_workers=num_workers
    )
    began = quorate.load(scheduler=scheduler, scaler=scaler)
    step, seen = began or 0, list[int]()
    while step < steps:
        for index, x, y in loader:
            seen += index.tolist()
            x = x + 0.01 * torch.randn(x.shape) + 0.001 * float(np.random.rand()) + 0.001 * random.random()
            loss = (model(x) - y).square().mean()
            scaler.scale(loss).backward()
            scaler.step(distributed)
            scaler.update()
            scheduler.step()
            distributed.zero_grad()
            step += 1
            if saves(world.rank, step):
                quorate.save(scheduler=scheduler, scaler=scaler)
            if step == steps:
                break
    return told(model, distributed, seen, began)


def told(model: nn.Module, optimizer: Any, seen: list[int], began: int | None) -> Told:
    state = [x.detach().clone().double().reshape(-1) for x in model.state_dict().values()]
    for one in optimizer.state_dict()["state"].values():
        state += [x.clone().double().reshape(-1) for x in one.values() if isinstance(x, torch.Tensor)]
    return Told(
        state,
        seen,
        began,
        (float(torch.rand(())), float(np.random.rand()), random.random()),
        optimizer.param_groups[0]["lr"],
    )
