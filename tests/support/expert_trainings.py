"""One training of a model with experts: spread over the shards of replicas, and on one worker of each replica."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.sharded_trainings import TOKENS, Training, batch, whole

WIDTH, STEPS = 32, 4


def an_expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH))


class Block(nn.Module):
    """What tokens of a sequence share, and experts for each of them."""

    def __init__(self, case: Case, groups: int) -> None:
        super().__init__()
        self.norm, self.mix, self.recomputes = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), case.recomputes
        self.experts = quorate.Experts(
            an_expert, 4, WIDTH, top_k=case.top_k, capacity_factor=case.capacity_factor, groups=groups
        )

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False) if self.recomputes else self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        y = x + torch.tanh(self.mix(self.norm(x))).cumsum(1) / 6
        return y + self.experts(y)


class Model(nn.Module):
    """Two blocks on tokens."""

    def __init__(self, case: Case, groups: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(case, groups) for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass(frozen=True)
class Case(Training):
    """One training."""

    top_k: int = 2
    capacity_factor: float | None = 1.0
    recomputes: bool = False
    clip: float | None = None
    offload: Literal["optimizer", "disk"] | None = None


def begun(case: Case, world: Any, each: int, *, shards: bool, seed: int) -> tuple[Any, Any]:
    model: Any = Model(case, each, seed).double()
    if shards:
        chosen: Any = {"zero": case.zero, "offload": case.offload}
        model = quorate.parallelize(model, world.mesh(replicas=case.replicas), **chosen)
    if case.optimizer == "sgd":
        plain: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    elif case.optimizer == "adafactor":
        plain = torch.optim.Adafactor(model.parameters(), lr=3e-3)
    else:
        plain = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)
    return model, quorate.distribute(plain, model, case.strategy, **case.settings)


def loss_of(model: Any, ids: Tensor, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    layers = [module for module in model.modules() if isinstance(module, quorate.Experts)]
    return loss + sum(0.1 * layer.balance_loss + 0.01 * layer.z_loss for layer in layers)


def train(
    case: Case, world: Any, each: int, *, shards: bool, seed: int = 1
) -> tuple[list[Tensor], list[float], list[int]]:
    """The parameters at the end, and of each step the loss and what was dropped; `each` workers' batches on each."""
    model, optimizer = begun(case, world, each, shards=shards, seed=seed)
    losses, dropped = [], []

    def backward(number: int) -> None:
        loss = loss_of(model, *batch(number, range(each * world.rank, each * (world.rank + 1)))) / case.accumulates
        loss.backward()
        losses.append(loss.item())
        dropped.append(sum(block.experts.dropped for block in model.blocks))

    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(case.accumulates - 1):
            with optimizer.accumulate():
                backward(step * case.accumulates + part)
        backward((step + 1) * case.accumulates - 1)
        if case.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        optimizer.step()
    optimizer.finish()
    return [whole(p) for p in model.parameters()], losses, dropped


def spread(case: Case, world: Any) -> tuple[list[Tensor], list[float], list[int]]:
    """On one of R x S real workers. Their models begin differently."""
    return train(case, world, 1, shards=True, seed=1 + world.rank)


def on_one_each(case: Case, size: int) -> list[tuple[list[Tensor], list[float], list[int]]]:
    """What R workers come to that have all experts each, and the batches of S workers."""
    each = size // case.replicas
    return VirtualWorld(case.replicas).run(joined(lambda world: train(case, world, each, shards=False)))


def kept(case: Case, root: Path, until: int, world: Any, *, shards: bool = True) -> list[Tensor]:
    """The parameters at step `until` of a training that goes on from the newest checkpoint in `root`, and saves one."""
    current.here().context(CheckpointContext).root = root
    each = 1 if shards else 2
    model, optimizer = begun(case, world, each, shards=shards, seed=1 + world.rank)
    step = quorate.load() or 0
    while step < until:
        optimizer.zero_grad()
        loss_of(model, *batch(step, range(each * world.rank, each * (world.rank + 1)))).backward()
        optimizer.step()
        step += 1
    quorate.save()
    with world.evaluate(at="replica"):
        return [whole(p) for p in model.parameters()]
