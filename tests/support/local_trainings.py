"""Trainings of strategies of local steps among virtual workers, and P models that are trained in turn beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from quorate.wire.virtual.compute import Constant
from tests.support.scene import Scene, Trainer, flat, note

SIZES = [1, 2, 3, 6]
STEPS = 12
RATE, MOMENTUM = 0.05, 0.9


def net() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw))
    return model


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1000 * step + rank))
    return (model(x) - rank).square().mean()  # workers want different things


FIELDS = ("steps", "heavy", "rests", "pause", "make", "records", "begin")


def training(strategy: str, size: int, *, schedule: Callable[[int], float] | None = None, **choice: Any) -> Scene:
    """Workers on `net` whose rates follow `schedule`; they see their parameters in every evaluation."""

    def follow(trainer: Trainer) -> None:
        for group in trainer.optimizer.param_groups if schedule else ():
            group["lr"] = RATE * schedule(trainer.step)  # type: ignore[misc]

    fields = {name: choice.pop(name) for name in FIELDS if name in choice}
    fields = {"model": net, "rate": RATE, "heavy": MOMENTUM, "steps": STEPS, "rest": note, "before": follow, **fields}
    world = {"compute": Constant(0.01), "timeout": 60.0}
    return Scene(strategy, size, loss=lambda t: loss(t.model, t.rank, t.step), world=world, settings=choice, **fields)


def trained(size: int, strategy: str, **choice: Any) -> Tensor:
    """The end of a training, which is the same on all workers; many laws are about the same ones."""
    if any(callable(value) for value in choice.values()):
        return training(strategy, size, **choice).end()
    return _trained_before(size, strategy, **choice)


_trained_before = cache(lambda size, strategy, **choice: training(strategy, size, **choice).end())

Models = list[tuple[nn.Module, torch.optim.Optimizer]]


def in_turn(
    size: int, period: int, agree: Callable[[Models], None], *, heavy: float = MOMENTUM, steps: int = STEPS
) -> Tensor:
    """P models, each trained by itself, and `agree` called with all of them after every `period` steps."""
    models = [net() for _ in range(size)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=RATE, momentum=heavy) for model in models]
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss(model, rank, step).backward()
            optimizer.step()
        if (step + 1) % period == 0:
            agree(list(zip(models, optimizers, strict=True)))
    return flat(models[0])


def put(model: nn.Module, numbers: Tensor) -> None:
    with torch.no_grad():
        for p, part in zip(model.parameters(), numbers.split([p.numel() for p in model.parameters()]), strict=True):
            p.copy_(part.view(p.shape))


def average(models: Models) -> Tensor:
    mean = torch.stack([flat(model) for model, _ in models]).mean(0)
    for model, _ in models:
        put(model, mean)
    return mean


def average_momenta(models: Models) -> None:
    for rows in zip(*(model.parameters() for model, _ in models), strict=True):
        momenta = [optimizer.state[p]["momentum_buffer"] for p, (_, optimizer) in zip(rows, models, strict=True)]
        mean = torch.stack(momenta).mean(0)
        for x in momenta:
            x.copy_(mean)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
