"""Trainings of strategies of local steps among virtual workers, and P models that are trained in turn beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import quorate
from quorate.launch.worker.world import World
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

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


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@dataclass
class Told:
    """Of one worker's training."""

    end: Tensor
    evaluated: list[Tensor] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    means: int = 0


def train(
    world: World,
    strategy: str,
    *,
    steps: int = STEPS,
    heavy: float = MOMENTUM,
    schedule: Callable[[int], float] = lambda step: 1.0,
    evaluates: tuple[int, ...] = (),
    pause: Callable[[int], float] = lambda rank: 0.0,
    make: Callable[[Any], torch.optim.Optimizer] | None = None,
    **settings: Any,
) -> Told:
    model = net()
    plain = make or (lambda p: torch.optim.SGD(p, lr=RATE, momentum=heavy))
    optimizer: Any = quorate.distribute(
        plain(model.parameters()), model, strategy, with_one_worker="algorithm", **settings
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    worker = optimizer.__dict__["_quorate_worker"]
    told, clock, means = Told(flat(model)), world.wire.clock, worker.means

    def counted(mean: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            told.means += 1
            return mean(*args, **kwargs)

        return ask

    means.of, means.of_gradient = counted(means.of), counted(means.of_gradient)
    for step in range(steps):
        if step in evaluates:
            with world.evaluate():
                told.evaluated.append(flat(model))
        optimizer.zero_grad()
        clock.sleep(pause(world.rank))
        loss(model, world.rank, step).backward()
        begin = clock.now()
        optimizer.step()
        told.waited.append(clock.now() - begin)
        scheduler.step()
    optimizer.finish()
    told.end = flat(model)
    return told


def run(size: int, task: Callable[[World], Told], *, seed: int = 0, compute: float = 0.01) -> list[Told]:
    return VirtualWorld(size, seed=seed, compute=Constant(compute), timeout=60.0).run(joined(task))


def trained(size: int, strategy: str, **choice: Any) -> Tensor:
    """The end of a training, which is the same on all workers; many laws are about the same ones."""
    if any(callable(value) for value in choice.values()):
        return _trained(size, strategy, **choice)
    return _trained_before(size, strategy, **choice)


def _trained(size: int, strategy: str, **choice: Any) -> Tensor:
    told = run(size, lambda world: train(world, strategy, **choice))
    assert all(torch.equal(one.end, told[0].end) for one in told)
    return told[0].end


_trained_before = cache(_trained)

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
