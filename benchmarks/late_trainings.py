"""The trainings of `late_gradients.py` and `servers.py`: four small tasks, pauses, and one training in
virtual or real workers.

Several learning rates are trained side by side in one run: a copy of the model and a parameter group for each, the sum
of their losses. When who is late does not depend on numbers, so each is what it would be alone, up to rounding. A loss
beyond `DIVERGED` has no gradient any more, so that a rate which diverges keeps the numbers of the others finite.

`quorate run -n 4 late_trainings.py SEED` is the real part: rank 0 prints the losses of each training as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

import quorate
from quorate.core.contracts import Wire
from quorate.core.workload import Workload
from quorate.launch.worker.world import World
from quorate.wire import current
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

DIVERGED = 1e6
COMPUTE = 0.005
"""Seconds of a step, before the pause."""
ALL_REDUCE, MAJORITY, SOLO, THREE = "all-reduce", "eager-majority", "eager-solo", "quorum of 3"
MAJORITY_COMMON, SOLO_COMMON = "eager-majority, common", "eager-solo, common"
SERVED = "parameter-server"
SYNC, BACKUP, BOUNDED, ASYNC = "sync", "sync, 1 backup", "bounded 3", "async"
SCALED, COMPENSATED, DANA, EASGD = "async, scaled", "DC-ASGD", "DANA", "easgd"
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    ALL_REDUCE: ("all-reduce", {}),
    MAJORITY: ("eager-majority", {}),
    SOLO: ("eager-solo", {}),
    THREE: ("quorum", {"wait_for": 3}),
    MAJORITY_COMMON: ("eager-majority", {"momentum": "common"}),
    SOLO_COMMON: ("eager-solo", {"momentum": "common"}),
    SYNC: (SERVED, {"mode": "sync"}),
    BACKUP: (SERVED, {"mode": "sync", "backup": 1}),
    BOUNDED: (SERVED, {"mode": "bounded", "max_staleness": 3}),
    ASYNC: (SERVED, {"mode": "async"}),
    SCALED: (SERVED, {"mode": "async", "staleness_scaling": "inverse", "step_size": "full"}),
    COMPENSATED: (SERVED, {"mode": "async", "delay_compensation": "adaptive", "compensation": 2.0}),
    DANA: (SERVED, {"mode": "async", "momentum": "worker"}),
    EASGD: ("easgd", {}),
}
"""Strategy and settings; where nothing is said, `momentum` is "auto": that of workers."""
PLAIN, HEAVY_BALL, NESTEROV, ADAMW = "SGD", "SGD, momentum 0.9", "SGD, Nesterov 0.9", "AdamW"
OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]]], Optimizer]] = {
    PLAIN: lambda groups: SGD(groups),
    HEAVY_BALL: lambda groups: SGD(groups, momentum=0.9),
    NESTEROV: lambda groups: SGD(groups, momentum=0.9, nesterov=True),
    ADAMW: lambda groups: AdamW(groups),
}


def uniform(draw: random.Random, _rank: int) -> float:
    return draw.random() * 0.03


def one_slow(draw: random.Random, rank: int) -> float:
    """The others' steps last 20 ms, give or take 2, those of rank 1 three times as long."""
    return (0.018 + 0.004 * draw.random()) * (3 if rank == 1 else 1) - COMPUTE


def bursts(draw: random.Random, _rank: int) -> float:
    """Steps of 20 ms, give or take 2, and one in 40 of 320 ms."""
    return 0.018 + 0.004 * draw.random() - COMPUTE + (0.3 if draw.random() < 1 / 40 else 0.0)


PAUSES: dict[str, Callable[[random.Random, int], float]] = {
    "random pauses": uniform,
    "one slow": one_slow,
    "bursts": bursts,
}


class Clock(Protocol):
    """What a worker goes by."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Training:
    """One run, at several learning rates."""

    task: str
    workers: int
    pauses: str
    optimizer: str
    side: str
    seed: int
    rates: tuple[float, ...]


class Regression:
    """y is the sum of 64 normal numbers; two layers, 64-256-1; the mean square error."""

    steps = 240
    has_schedule = False

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def batch(self, draw: torch.Generator) -> Tensor:
        return torch.randn(32, 64, generator=draw)

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
        return found

    @cached_property
    def held_out(self) -> Tensor:
        return torch.randn(2000, 64, generator=torch.Generator().manual_seed(5))


class OfWorkload:
    """A workload of the package, a batch of each step drawn from all its examples; its loss."""

    def __init__(self, workload: Workload[Any], steps: int, batch: int, *, has_schedule: bool) -> None:
        self._workload, self._batch = workload, batch
        self.steps, self.has_schedule = steps, has_schedule
        self._examples: Any = workload.dataset(train=True)

    def model(self) -> nn.Module:
        return self._workload.model(0)

    def batch(self, draw: torch.Generator) -> Any:
        places = torch.randint(len(self._examples), (self._batch,), generator=draw).tolist()
        return self._workload.collate([self._examples[place] for place in places])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self._workload.loss(model, batch)

    @cached_property
    def held_out(self) -> Any:
        there: Any = self._workload.dataset(train=False)
        return self._workload.collate([there[place] for place in range(len(there))])


REGRESSION, DIGITS, BYTES, HYPERPLANE = "regression", "digits", "stdlib-bytes", "hyperplane"


@cache
def task_of(name: str) -> Regression | OfWorkload:
    if name == REGRESSION:
        return Regression()
    if name == DIGITS:
        from quorate.workloads.digits import Digits

        return OfWorkload(Digits(), 60, 16, has_schedule=False)
    if name == HYPERPLANE:
        from quorate.workloads.hyperplane import Hyperplane

        return OfWorkload(Hyperplane(points=4096, features=1024), 160, 32, has_schedule=False)
    from quorate.workloads.stdlib_bytes import StdlibBytes

    small = StdlibBytes(length=32, width=32, layers=1, heads=2, most_bytes=1_000_000, test_windows=256)
    return OfWorkload(small, 100, 8, has_schedule=True)


@dataclass(frozen=True)
class Losses:
    """Held-out losses at each rate; at most `DIVERGED`, which also stands for no number."""

    final: list[float]
    """Of all replicas, in the end."""
    first: list[float]
    """Of the worker that was the first to make its last step, then: later rounds are of fewer and fewer workers."""


Ended = tuple[float, list[float], list[float]]
"""When a worker made its last step; the losses in the end, and then."""


def trained(one: Training, world: World, clock: Clock) -> Ended:
    """In one worker."""
    task, (strategy, settings) = task_of(one.task), SIDES[one.side]
    copies = nn.ModuleList([task.model() for _ in one.rates])
    groups = [{"params": list(copy.parameters()), "lr": rate} for copy, rate in zip(copies, one.rates, strict=True)]
    optimizer = quorate.distribute(
        OPTIMIZERS[one.optimizer](groups), copies, strategy, compare_every=0, on_nonfinite="ignore", **settings
    )
    scheduler = CosineAnnealingLR(optimizer, task.steps) if task.has_schedule else None
    examples = torch.Generator().manual_seed(100 + world.rank + 1000 * one.seed)
    draw = random.Random(7 + world.rank + 1000 * one.seed)
    for _ in range(task.steps):
        batch = task.batch(examples)
        optimizer.zero_grad()
        losses = torch.stack([task.loss(copy, batch).clamp(max=DIVERGED) for copy in copies])
        losses.sum().backward()
        clock.sleep(PAUSES[one.pauses](draw, world.rank))
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    ended, first = clock.now(), held_out(task, copies)
    optimizer.finish()  # type: ignore[attr-defined]
    return ended, held_out(task, copies), first


def held_out(task: Regression | OfWorkload, copies: nn.ModuleList) -> list[float]:
    """The loss of each copy."""
    copies.eval()
    with torch.no_grad():
        found = [float(task.loss(copy, task.held_out)) for copy in copies]
    return [min(loss, DIVERGED) if math.isfinite(loss) else DIVERGED for loss in found]


def of_workers(found: Sequence[Ended]) -> Losses:
    """What all of them have found, by rank."""
    return Losses(found[0][1], min(found, key=lambda one: one[0])[2])


def in_the_virtual_world(one: Training) -> Losses:
    """The losses in `one.workers` virtual workers; the same on every machine, up to rounding."""
    task_of(one.task).held_out  # noqa: B018 - made once, before workers share it

    def live(wire: Wire) -> Ended:
        place = current.enter(wire, thread_only=True)
        try:
            found = trained(one, quorate.join(), wire.clock)
            place.leave()
            return found
        finally:
            current.forget(thread_only=True)

    network = Network(bandwidth=math.inf)  # rates side by side shall not make messages longer
    with contextlib.redirect_stderr(io.StringIO()):
        world = VirtualWorld(one.workers, seed=one.seed, network=network, compute=Constant(COMPUTE))
        return of_workers(world.run(live))


REAL_SIDES = (ALL_REDUCE, MAJORITY, SOLO)
REAL_OPTIMIZERS = (HEAVY_BALL, ADAMW)
REAL_RATE = 0.01


class Computing:
    """A clock of a real worker whose pauses are longer by the time of a step."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(COMPUTE + seconds)


def in_real_workers(seed: int) -> None:
    """In one of them: side after side with the same examples; rank 0 prints [optimizer, side, final loss, first loss].

    They are on one host, so that their clocks are one.
    """
    torch.set_num_threads(1)
    world = quorate.join()
    for optimizer in REAL_OPTIMIZERS:
        for side in REAL_SIDES[seed % 3 :] + REAL_SIDES[: seed % 3]:
            one = Training(REGRESSION, world.size, "random pauses", optimizer, side, seed, (REAL_RATE,))
            losses = of_workers(world.gather(trained(one, world, Computing())))
            if world.rank == 0:
                print(json.dumps([optimizer, side, *losses.final, *losses.first]), flush=True)


if __name__ == "__main__":
    in_real_workers(int(sys.argv[1]))
