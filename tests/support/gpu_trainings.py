"""Trainings on a GPU, as scripts have them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.wire import current
from tests.support.every_strategy import OF_ADAM, optimizer_of
from tests.support.on_gpu import GPU

BATCH, WIDTH, CLASSES = 16, 24, 5


@dataclass(frozen=True)
class Run:
    """One training; `amp` is what forward passes compute in."""

    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)
    amp: str | None = None
    steps: int = 80
    clips: bool = False
    accumulates: int = 1
    compiled: bool = False
    backend: str = "inductor"
    adamw: bool = False
    late: bool = False
    """Whether the last worker is late by 20 ms in each step."""


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, CLASSES))


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(BATCH, WIDTH, generator=draw)
    return x, x[:, :CLASSES].argmax(1)


def trained(run: Run, device: str, world: Any) -> tuple[list[float], list[Tensor]]:
    """Losses on common data at the beginning and at the end, and the parameters."""
    model = net(world.rank).to(device)
    called: Any = torch.compile(model, backend=run.backend) if run.compiled else model
    plain: Any = optimizer_of(run.strategy, model.parameters(), lr=0.05, momentum=0.9)
    settings = run.settings
    if run.strategy in OF_ADAM:
        plain.param_groups[0]["lr"], settings = 3e-3, {"freeze": 20, "dense_below": 1, **settings}
    elif run.adamw:
        plain = torch.optim.AdamW(model.parameters(), lr=3e-3)
    optimizer: Any = quorate.distribute(plain, model, run.strategy, **settings)
    scaler = torch.amp.GradScaler(GPU.type, init_scale=2.0**24) if run.amp == "float16" else None
    x, y = (one.to(device) for one in batch(99, 0))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        if run.amp is None:
            return F.cross_entropy(called(x), y)
        with torch.autocast(torch.device(device).type, getattr(torch, run.amp)):
            return F.cross_entropy(called(x), y)

    with torch.no_grad():
        told = [loss(x, y).item()]
    for step in range(run.steps):
        if run.late and world.rank == world.size - 1:
            _ = loss(x, y).item()
            current.here().wire.clock.sleep(0.02)
        optimizer.zero_grad()
        for part in range(run.accumulates):
            one = loss(*(each.to(device) for each in batch(world.rank, step * run.accumulates + part)))
            backward = one / run.accumulates if scaler is None else scaler.scale(one / run.accumulates)
            if part < run.accumulates - 1:
                with optimizer.accumulate():
                    backward.backward()
            else:
                backward.backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if run.clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    optimizer.finish()
    with torch.no_grad():
        told.append(loss(x, y).item())
    return told, [p.detach() for p in model.parameters()]


def several(runs: list[Run], device: str, world: Any) -> list[tuple[list[float], list[Tensor]]]:
    return [trained(run, device, world) for run in runs]


def kept(root: Path, until: int, world: Any) -> list[Tensor]:
    """The parameters at step `until`, from the newest checkpoint in `root` on, with dropout on the GPU."""
    current.here().context(CheckpointContext).root = root
    current.here().context(CheckpointContext).listeners = [lambda sentence: None]
    torch.manual_seed(world.rank)
    model = nn.Sequential(nn.Linear(WIDTH, 48), nn.Dropout(0.3), nn.Linear(48, CLASSES)).to(GPU)
    optimizer: Any = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    for step in range(quorate.load() or 0, until):
        x, y = (one.to(GPU) for one in batch(world.rank, step))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    quorate.save()
    return [p.detach() for p in model.parameters()]


def normalized(world: Any) -> list[Tensor]:
    """Output and gradients of a batch norm over all workers' batches, and its statistics."""
    torch.manual_seed(0)
    model = quorate.sync_batch_norm(nn.BatchNorm1d(WIDTH)).to(GPU) if world.size > 1 else nn.BatchNorm1d(WIDTH)
    x = torch.cat([batch(rank, 0)[0] for rank in ((world.rank,) if world.size > 1 else (0, 1))])
    x = x.to(GPU if world.size > 1 else "cpu").requires_grad_()
    found = model(x)
    found.pow(3).sum().backward()
    return [found.detach(), x.grad, model.running_mean, model.running_var]  # type: ignore[list-item]


def loaded(world: Any) -> tuple[Tensor, Tensor]:
    """What came of a data set, batch by batch, on the GPU, while each batch was computed on; and what should have."""
    data = TensorDataset(torch.arange(64.0 * 5000).reshape(64, 5000), torch.arange(64))
    came = []
    weights = torch.eye(5000, device=GPU)
    for x, y in quorate.loader(data, 4, shuffle=False, device=GPU):
        assert x.device.type == GPU.type
        came.append(((x @ weights)[:, 0] / 5000 - y).abs().sum() + y.float().sum() * 0)
        came[-1] = came[-1] + 0
    return torch.stack(came), torch.zeros(len(came))


def means(world: Any) -> list[Tensor]:
    """Means and gathers of tensors on the GPU."""
    x = torch.full((3,), float(world.rank + 1), device=GPU)
    found = world.mean(x)
    half = world.mean(x.to(torch.bfloat16))
    assert found.device.type == half.device.type == GPU.type
    return [found, half.float(), *world.gather(x)]


def late_is_not_finite(mesh: dict[str, int], at: Sequence[int], world: Any) -> str:
    """What was told of the gradients of four steps, of which the last worker's are NaN in steps `at`."""
    told = io.StringIO()
    with redirect_stderr(told):
        model = net().to(GPU)
        if mesh:
            model = quorate.parallelize(model, world.mesh(**mesh))
        optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model, compare_every=0)
        for step in range(4):
            x, y = (part.to(GPU) for part in batch(world.rank, step))
            optimizer.zero_grad()
            scale = torch.nan if step in at and world.rank == world.size - 1 else 1.0
            (F.cross_entropy(model(x), y) * scale).backward()
            optimizer.step()
        optimizer.finish()
    return told.getvalue()


def one_is_not_finite(world: Any) -> tuple[list[Tensor], str]:
    """The parameters, where the last worker's gradient is NaN in one step, which is left out; and what was told."""
    told = io.StringIO()
    with redirect_stderr(told):
        model = net().to(GPU)
        optimizer: Any = quorate.distribute(
            torch.optim.SGD(model.parameters(), lr=0.05), model, on_nonfinite="skip", compare_every=0
        )
        for step in range(6):
            x, y = (one.to(GPU) for one in batch(world.rank, step))
            optimizer.zero_grad()
            scale = torch.nan if step == 3 and world.rank == world.size - 1 else 1.0
            (F.cross_entropy(model(x), y) * scale).backward()
            optimizer.step()
        optimizer.finish()
    return [p.detach() for p in model.parameters()], told.getvalue()
