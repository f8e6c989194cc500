"""Training of models with branches on several workers, and the same in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

BATCH, WIDTH, STEPS = 4, 6, 3


class Recomputed(nn.Sequential):
    """Its activations are calculated again."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return found


class Inception(nn.Module):
    """Convolutions of several sizes over one image, with statistics of batches, between layers that all have."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        widths = (1, 3, 5)
        some = [nn.Sequential(nn.Conv2d(3, 2 + n, n, padding=n // 2), nn.BatchNorm2d(2 + n)) for n in widths]
        again = Recomputed(nn.Conv2d(3, 4, 1), nn.ReLU())
        self.mixed = quorate.branches([*some, again, nn.MaxPool2d(3, 1, 1)], "concatenate")
        self.head = nn.Linear(3 + 5 + 7 + 4 + 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(F.relu(self.mixed(self.stem(x))).mean((-2, -1)))
        return found


class Siamese(nn.Module):
    """One network on two inputs, of which a third branch has a part as well, and so has what follows."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(WIDTH, WIDTH)
        net = nn.Sequential(first, nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.after.weight = first.weight
        self.pair = quorate.branches([net, net, nn.Sequential(first, nn.Linear(WIDTH, WIDTH))], inputs="each")

    def forward(self, x: Tensor) -> Tensor:
        one, other, third = self.pair(self.before(x), x.flip(0), x.square())
        return torch.cat([(one - other).square(), self.after(third), one * third], -1)


def image(step: int, number: int) -> Tensor:
    """One for all workers of a group."""
    draw = torch.Generator().manual_seed(100 * step + number)
    return torch.randn(BATCH, 1, 5, 5, generator=draw, dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """One training."""

    make: Callable[[], nn.Module]
    mesh: dict[str, int] = field(default_factory=lambda: {"tensor": 2})
    strategy: str = "all-reduce"


@dataclass
class End:
    """What is compared: numbers that do not depend on where parameters lie, and the outputs of the trained model."""

    losses: list[float]
    norms: list[float]
    output: Tensor
    numbers: int
    """Of parameters, on this worker."""


def _trained(case: Case, model: nn.Module, batches: list[int]) -> End:
    optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3), model, case.strategy)
    losses, norms = [], []

    def given(step: int, number: int) -> Tensor:
        x = image(step, number)
        return x if case.make is Inception else x.flatten(1)[:, :WIDTH]

    for step in range(STEPS):
        optimizer.zero_grad()
        every = [model(given(step, number)).square().mean() for number in batches]
        torch.stack(every).mean().backward()
        losses.append(every[0].item())
        norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        optimizer.step()
    optimizer.finish()
    model.eval()
    with torch.no_grad():
        output = model(given(STEPS, 0))
    here = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in model.parameters())
    return End(losses, norms, output, here)


def on_workers(case: Case, world: Any) -> End:
    """On one of several; their models begin differently."""
    torch.set_num_threads(1)
    torch.manual_seed(1 + world.rank)
    model = quorate.parallelize(case.make().double(), world.mesh(**case.mesh), tensor={})
    return _trained(case, model, [world.rank // case.mesh["tensor"]])


def in_one(case: Case) -> list[End]:
    """The same of replicas that have all branches."""
    replicas, shards = case.mesh.get("replicas", 1), case.mesh.get("shards", 1)

    def one(world: Any) -> End:
        torch.manual_seed(1)
        own = range(shards * world.rank, shards * (world.rank + 1))
        return _trained(case, case.make().double(), list(own))

    return VirtualWorld(replicas).run(joined(one))


def kept(root: Path, workers: int, until: int, world: Any) -> list[float] | str:
    """Losses up to step `until` of a training that goes on from the newest checkpoint and saves one; or why not."""
    torch.set_num_threads(1)
    current.here().context(CheckpointContext).root = root
    torch.manual_seed(1 + world.rank)
    model: Any = Siamese().double()
    if workers > 1:
        model = quorate.parallelize(model, world.mesh(tensor=workers), tensor={})
    optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    steps = quorate.load() or 0
    losses = []
    for step in range(steps, until):
        optimizer.zero_grad()
        loss = model(image(step, 0).flatten(1)[:, :WIDTH]).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    quorate.save()
    optimizer.finish()
    return losses
