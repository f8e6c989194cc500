"""The trainings of `outer_momentum.py` and `outer_defaults.py`: small tasks, and DiLoCo with many settings at once.

The replicas of all workers and all settings are one model with one more dimension; AdamW and SGD go number by number,
so that each is what it would be alone. The outer steps are those of the package, of each setting by itself.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

import quorate
from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire
from quorate.core.vectors import Flat
from quorate.replica.outer_optimizer import updater
from quorate.strategies.diloco import DiLoCo
from quorate.wire import current
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.world import VirtualWorld
from quorate.workloads.digits import Digits
from quorate.workloads.stdlib_bytes import read_texts
from quorate.workloads.stdlib_corpus import standard_library

BEFORE, WIDTH, HIDDEN, BYTES = 4, 8, 32, 256
Batch = tuple[Tensor, Tensor]


class Text:
    """The next byte after some."""

    batch, shapes = 64, ((BYTES, WIDTH), (BEFORE * WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, BYTES), (BYTES,))
    rates: ClassVar = {"adamw": 4e-3, "sgd": 0.05}
    loss_of = staticmethod(cross_entropy)

    def __init__(self) -> None:
        self._train, self._test = (text.numbers.long() for text in read_texts(standard_library(), 1_000_000))

    def drawn(self, count: int, draw: torch.Generator) -> Batch:
        return self._windows(self._train, count, draw)

    def held_out(self) -> Batch:
        return self._windows(self._test, 4096, torch.Generator().manual_seed(1))

    def _windows(self, text: Tensor, count: int, draw: torch.Generator) -> Batch:
        places = torch.randint(len(text) - BEFORE, (count, 1), generator=draw)
        found = text[places + torch.arange(BEFORE + 1)]
        return found[:, :-1], found[:, -1]

    def scores(self, theta: Sequence[Tensor], x: Tensor) -> Tensor:
        """Of replicas (n, ...) with a batch (n, examples, ...) each."""
        table, into, bias, out, last = theta
        rows = x + BYTES * torch.arange(len(x))[:, None, None]
        seen = table.reshape(-1, WIDTH)[rows].flatten(2)
        return torch.baddbmm(last[:, None], torch.relu(torch.baddbmm(bias[:, None], seen, into)), out)


class Images:
    """Handwritten digits with noise in every pixel."""

    batch, shapes = 32, ((64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))
    rates: ClassVar = {"adamw": 2e-2, "sgd": 0.02}
    loss_of = staticmethod(cross_entropy)

    def __init__(self) -> None:
        parts: Any = [Digits().dataset(train=train) for train in (True, False)]
        self._train, self._test = ((part.tensors[0].flatten(1), part.tensors[1]) for part in parts)

    def drawn(self, count: int, draw: torch.Generator) -> Batch:
        images, labels = self._train
        places = torch.randint(len(images), (count,), generator=draw)
        return images[places] + 0.3 * torch.randn(count, 64, generator=draw), labels[places]

    def held_out(self) -> Batch:
        return self._test

    def scores(self, theta: Sequence[Tensor], x: Tensor) -> Tensor:
        """Of replicas (n, ...) with a batch (n, examples, ...) each."""
        into, bias, out, last = theta
        return torch.baddbmm(last[:, None], torch.relu(torch.baddbmm(bias[:, None], x, into)), out)


class Lines:
    """Least squares: a linear function of 16 numbers, with noise."""

    batch, shapes = 32, ((16, 1), (1,))
    rates: ClassVar = {"adamw": 1e-2, "sgd": 1e-2}
    loss_of = staticmethod(mse_loss)

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(7)
        self._true = torch.randn(16, 1, generator=draw)

    def drawn(self, count: int, draw: torch.Generator) -> Batch:
        x = torch.randn(count, 16, generator=draw)
        return x, x @ self._true + torch.randn(count, 1, generator=draw)

    def held_out(self) -> Batch:
        return self.drawn(4096, torch.Generator().manual_seed(1))

    def scores(self, theta: Sequence[Tensor], x: Tensor) -> Tensor:
        """Of replicas (n, ...) with a batch (n, examples, ...) each."""
        weight, bias = theta
        return torch.baddbmm(bias[:, None], x, weight)


Task = Text | Images | Lines
TASKS: dict[str, type[Task]] = {"stdlib-bytes": Text, "digits": Images, "least squares": Lines}
INNER: dict[str, Callable[..., Optimizer]] = {
    "adamw": partial(AdamW, fused=True),
    "sgd": partial(SGD, momentum=0.9, fused=True),
}


@cache
def task_of(name: str) -> Task:
    """Made once."""
    return TASKS[name]()


def first(task: Task, seed: int) -> list[Tensor]:
    """Where all replicas begin."""
    draw = torch.Generator().manual_seed(seed)
    spread = [math.sqrt(2 / shape[0]) if shape[0] != BYTES else 0.3 for shape in task.shapes]
    return [
        torch.randn(shape, generator=draw) * wide if len(shape) > 1 else torch.zeros(shape)
        for shape, wide in zip(task.shapes, spread, strict=True)
    ]


@dataclass(frozen=True)
class Arm:
    """How outer steps are made."""

    rate: float
    momentum: float | None
    """None: measured."""
    reach: float = 1.5
    most: float = 0.9
    """Momentum of a measured one."""

    def __str__(self) -> str:
        kind = (
            f"momentum {self.momentum:g}"
            if self.momentum is not None
            else f"measured, reach {self.reach:g}, at most {self.most:g}"
        )
        return f"rate {self.rate:g}, {kind}"

    @property
    def settings(self) -> dict[str, Any]:
        if self.momentum is not None:
            return {"outer_rate": self.rate, "outer_momentum": self.momentum}
        measured = {"outer_gain": "measured", "outer_reach": self.reach, "outer_momentum": self.most}
        return {"outer_rate": self.rate, **measured}


@dataclass(frozen=True)
class Cell:
    """One task, at one period, with so many workers."""

    task: str
    workers: int
    period: int
    inner: str = "adamw"


class Unrecorded:
    """A worker, as far as an outer step sees it."""

    updater = staticmethod(updater)

    def note_outer_step(self, fragment: int, measured: Mapping[str, Any] | None, *, reach: float | None) -> None: ...


def trained(cell: Cell, arms: Sequence[Arm], seed: int, steps: int) -> list[float]:
    """The held-out loss of every arm in the end; without arms that of all-reduce alone."""
    task, size, count = task_of(cell.task), cell.workers, max(1, len(arms))
    start = first(task, seed)
    theta = [nn.Parameter(x.expand(count * size, *x.shape).clone()) for x in start]
    plain = INNER[cell.inner](theta, lr=task.rates[cell.inner])
    falls = CosineAnnealingLR(plain, steps)
    draws = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(size)]
    layout = layout_of([(str(place), nn.Parameter(x)) for place, x in enumerate(start)])
    outers = [DiLoCo(**arm.settings).outer_optimizer for arm in arms]
    points = [[x.clone() for x in start] for _ in arms]
    memories: list[dict[str, Any]] = [{} for _ in arms]
    alone: Any = Unrecorded()
    for step in range(1, steps + 1):
        given = [task.drawn(task.batch // size, draw) for draw in draws]
        x, y = (torch.stack(column).repeat(count, *[1] * column[0].dim()) for column in zip(*given, strict=True))
        scores = task.scores(theta, x)
        plain.zero_grad()
        (task.loss_of(scores.flatten(0, 1), y.flatten(0, 1)) * len(x)).backward()
        if not arms:
            for p in theta:
                assert p.grad is not None
                p.grad[:] = p.grad.mean(0)
        plain.step()
        falls.step()
        if arms and (step % cell.period == 0 or step == steps):
            for number, (outer, point) in enumerate(zip(outers, points, strict=True)):
                own = [p.detach()[number * size : (number + 1) * size] for p in theta]
                at = flat_of(point, layout)
                way = flat_of([old - some.mean(0) for old, some in zip(point, own, strict=True)], layout)
                outer.step(alone, at, way, memories[number], 0)
                for some, old, new in zip(own, point, at.segments(), strict=True):
                    old.copy_(new)
                    some.copy_(new)
    inputs, wanted = task.held_out()
    ends = points if arms else [[p.detach()[0] for p in theta]]
    losses = [float(task.loss_of(task.scores([x[None] for x in end], inputs[None])[0], wanted)) for end in ends]
    return [loss if math.isfinite(loss) else 1e6 for loss in losses]


def flat_of(tensors: Sequence[Tensor], layout: Any) -> Flat:
    """As one vector."""
    found = Flat.zeros(layout)
    for there, x in zip(found.segments(), tensors, strict=True):
        there.copy_(x)
    return found


class Replica(nn.Module):
    """One, as a user's model."""

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__()
        self.own = nn.ParameterList(nn.Parameter(x) for x in first(task, seed))

    def scores(self, task: Task, x: Tensor) -> Tensor:
        return task.scores([p[None] for p in self.own], x[None])[0]


def in_virtual_workers(cell: Cell, arm: Arm, seed: int, steps: int, strategy: str = "diloco") -> float:
    """The same of one arm, by `diloco` or another strategy with outer steps."""
    task = task_of(cell.task)
    inputs, wanted = task.held_out()

    def live(wire: Wire) -> float:
        place = current.enter(wire, thread_only=True)
        try:
            world, model = quorate.join(), Replica(task, seed)
            plain = INNER[cell.inner](model.parameters(), lr=task.rates[cell.inner])
            settings: dict[str, Any] = {"sync_every": cell.period, **arm.settings}
            optimizer: Any = quorate.distribute(plain, model, strategy, **settings)
            falls, draw = CosineAnnealingLR(optimizer, steps), torch.Generator().manual_seed(1000 * seed + world.rank)
            for _ in range(steps):
                optimizer.zero_grad()
                x, y = task.drawn(task.batch // cell.workers, draw)
                task.loss_of(model.scores(task, x), y).backward()
                optimizer.step()
                falls.step()
            optimizer.finish()
            place.leave()
            return float(task.loss_of(model.scores(task, inputs), wanted))
        finally:
            current.forget(thread_only=True)

    with contextlib.redirect_stderr(io.StringIO()):
        return VirtualWorld(cell.workers, seed=seed, compute=Constant(0.01)).run(live)[0]
