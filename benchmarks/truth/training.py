"""One training in virtual workers, with simulated network and compute times, as the trials of this folder need it."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from harness import TUNING_SEED, quietly
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import quorate
from quorate.core.durations import Sampled
from quorate.launch.worker.world import World
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from quorate.workloads.digits import Digits
from tests.support.joined import joined

Batch = tuple[Tensor, Tensor]
StepSeconds = Callable[[int, int], float]
"""(rank, step) -> seconds of a step."""
STEADY = Constant(0.1)
SMOOTHED = 0.5
"""The weight of earlier looks in the loss that is held against a target."""


class Images:
    """Handwritten digits of scikit-learn with noise in every pixel; a network of one hidden layer."""

    def __init__(self) -> None:
        parts: Any = [Digits().dataset(train=train) for train in (True, False)]
        (self._images, self._labels), self.held_out = ((part.tensors[0].flatten(1), part.tensors[1]) for part in parts)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def batch(self, count: int, draw: torch.Generator) -> Batch:
        places = torch.randint(len(self._images), (count,), generator=draw)
        noise = 0.3 * torch.randn(count, 64, generator=draw)
        return self._images[places] + noise, self._labels[places]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of held-out images that are classified correctly, in percent."""
        images, labels = self.held_out
        return 100 * float((model(images).argmax(1) == labels).float().mean())


class Hyperplane:
    """A linear function of 256 numbers with noise, learned from one-layer examples, as in eager-SGD's regression."""

    features = 256

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(7)
        self._true = torch.randn(self.features, 1, generator=draw)
        self.held_out = self.batch(1024, draw)

    def model(self) -> nn.Module:
        return nn.Linear(self.features, 1)

    def batch(self, count: int, draw: torch.Generator) -> Batch:
        x = torch.randn(count, self.features, generator=draw)
        return x, x @ self._true + torch.randn(count, 1, generator=draw)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return mse_loss(model(batch[0]), batch[1])

    def accuracy(self, model: nn.Module) -> float:
        return math.nan


class Weight:
    """Hardly any computing: a vector that only has to be agreed on, for throughput."""

    numbers, tensors = 262_144, 64
    held_out = (torch.zeros(1), torch.zeros(1))

    def model(self) -> nn.Module:
        return nn.ParameterList([nn.Parameter(torch.zeros(self.numbers // self.tensors)) for _ in range(self.tensors)])

    def batch(self, count: int, draw: torch.Generator) -> Batch:
        return self.held_out

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return torch.stack([p.sum() for p in model.parameters()]).sum()

    def accuracy(self, model: nn.Module) -> float:
        return math.nan


TASKS: Mapping[str, Callable[[], Any]] = {"digits": Images, "hyperplane": Hyperplane, "weight": Weight}


@cache
def task_of(name: str) -> Any:
    return TASKS[name]()


@dataclass(frozen=True)
class Late:
    """Steps of equal length, with `count` random workers late in every step."""

    seconds: float
    delay: float
    workers: int
    count: int = 1
    seed: int = 0

    def __call__(self, rank: int, step: int) -> float:
        late = random.Random(1_000_003 * self.seed + step).sample(range(self.workers), self.count)
        return self.seconds + self.delay * (rank in late)


@dataclass(frozen=True)
class Slow:
    """Steps that vary by a tenth, with one worker slower by a factor in all of them."""

    seconds: float
    factor: float
    seed: int = 0

    def __call__(self, rank: int, step: int) -> float:
        varied = Sampled("uniform", 0.95 * self.seconds, 1.05 * self.seconds, self.seed)(rank, step)
        return varied * (self.factor if rank == 0 else 1.0)


@dataclass(frozen=True)
class Varied:
    """Steps that vary for each worker by itself: lognormal, with this median and width."""

    median: float
    width: float
    seed: int = 0

    def __call__(self, rank: int, step: int) -> float:
        return Sampled("lognormal", self.median, self.width, self.seed)(rank, step)


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run."""

    strategy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    task: str = "digits"
    rate: float = 0.1
    momentum: float = 0.0
    workers: int = 8
    batch: int = 16
    steps: float = math.inf
    """Of each worker."""
    seconds: float = math.inf
    """Virtual; a training ends with the first of the two."""
    step_seconds: StepSeconds = STEADY
    network: Network = field(default_factory=lambda: Network(latency=1e-5, bandwidth=math.inf))
    look_every: int = 5
    """Steps of the last worker between two looks at its replica."""
    until: float = -math.inf
    """A smoothed loss that ends the training: no worker begins another step."""
    seed: int = 0


@dataclass(frozen=True)
class Look:
    """The replica of one worker at one moment."""

    seconds: float
    loss: float
    smoothed: float
    """The running mean of the losses."""


@dataclass(frozen=True)
class Trained:
    """The result of one run."""

    looks: Sequence[Look]
    step_ends: Sequence[float]
    """Virtual seconds at which workers ended their steps, in order."""
    loss: float
    """Of the last replica on held-out examples."""
    accuracy: float

    def seconds_to(self, loss: float) -> float:
        """Return the virtual seconds until the smoothed loss was as low; infinite if it never was."""
        return next((look.seconds for look in self.looks if look.smoothed <= loss), math.inf)

    @property
    def gradients_per_second(self) -> float:
        """Return the steps of all workers per virtual second, in the last two thirds of the time."""
        end = self.step_ends[-1]
        return sum(end / 3 < at for at in self.step_ends) / (2 * end / 3)


def work(training: Training, world: World, has_ended: threading.Event) -> tuple[list[Look], list[float], float, float]:
    """Train as one worker of the world."""
    task, clock = task_of(training.task), world.wire.clock
    torch.manual_seed(training.seed)
    model = task.model()
    plain = torch.optim.SGD(model.parameters(), lr=training.rate, momentum=training.momentum)
    settings: dict[str, Any] = {"on_nonfinite": "ignore", "compare_every": 0, **training.settings}
    optimizer: Any = quorate.distribute(plain, model, training.strategy, **settings)
    draw = torch.Generator().manual_seed(1000 * training.seed + world.rank)
    looks, ends, step = list[Look](), list[float](), 0
    while step < training.steps and clock.now() < training.seconds and not has_ended.is_set():
        clock.sleep(training.step_seconds(world.rank, step))
        optimizer.zero_grad()
        task.loss(model, task.batch(training.batch, draw)).backward()
        optimizer.step()
        step += 1
        ends.append(clock.now())
        if world.rank == world.size - 1 and step % training.look_every == 0:
            loss = loss_of(task, model)
            mean = SMOOTHED * looks[-1].smoothed + (1 - SMOOTHED) * loss if looks else loss
            looks.append(Look(clock.now(), loss, mean))
            if mean <= training.until:
                has_ended.set()
    optimizer.finish()
    with torch.no_grad():
        return looks, ends, loss_of(task, model), task.accuracy(model)


def loss_of(task: Any, model: nn.Module) -> float:
    """Return the loss on held-out examples; infinite if it is no number."""
    with torch.no_grad():
        loss = float(task.loss(model, task.held_out))
    return loss if math.isfinite(loss) else math.inf


def trained(training: Training) -> Trained:
    """Train in virtual workers; the result is the same on every machine, up to rounding."""
    world = VirtualWorld(
        training.workers, seed=training.seed, network=training.network, compute=Constant(0.0), timeout=900.0
    )
    has_ended = threading.Event()
    results = quietly(lambda: world.run(joined(lambda joined_world: work(training, joined_world, has_ended))))
    last = min(ends[-1] for _, ends, _, _ in results)
    ends = sorted(end for _, own, _, _ in results for end in own if end <= last)
    looks, _, loss, accuracy = results[-1]
    return Trained(looks, ends, loss, accuracy)


def fastest(training: Training, rates: Sequence[float], loss: float) -> Training:
    """Return the training with the rate that reaches a loss first, with a seed that does not count."""
    training = replace(training, until=loss)
    runs = {rate: trained(replace(training, rate=rate, seed=TUNING_SEED)) for rate in rates}
    best = min(rates, key=lambda rate: (runs[rate].seconds_to(loss), runs[rate].loss))
    return replace(training, rate=best)


def lowest(training: Training, rates: Sequence[float]) -> Training:
    """Return the training with the rate whose last loss is lowest, with a seed that does not count."""
    losses = {rate: trained(replace(training, rate=rate, seed=TUNING_SEED)).loss for rate in rates}
    return replace(training, rate=min(rates, key=lambda rate: losses[rate]))
