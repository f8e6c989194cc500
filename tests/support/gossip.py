"""Small trainings of gossip among virtual workers, and the law that nothing is lost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

import quorate
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.faulty import Fault, Faulty
from tests.support.joined import joined

T = TypeVar("T")
RATE = 0.05


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([x.detach().double().reshape(-1) for x in tensors])


@dataclass
class Told:
    """What one worker tells of its training."""

    begin: torch.Tensor
    gradients: torch.Tensor
    """The sum of its own."""
    end: torch.Tensor
    replicas: list[torch.Tensor] = field(default_factory=list)
    """The model at each evaluation."""
    given: list[torch.Tensor] = field(default_factory=list)
    """What counts in the mean there: the model, and what has been received but not taken in."""
    means: list[torch.Tensor] = field(default_factory=list)
    masses: list[float] = field(default_factory=list)
    momentum: torch.Tensor | None = None
    steps: list[torch.Tensor] = field(default_factory=list)
    lost: float = 0.0
    rounds: list[int] = field(default_factory=list)
    """The number of the newest exchange after every step."""


def train(
    world: quorate.World,
    steps: int,
    *,
    heavy: float = 0.0,
    decay: float = 0.0,
    pauses: Callable[[int, int], float] = lambda rank, step: 0.0,
    evaluates: tuple[int, ...] = (),
    crashes: int | None = None,
    spoils: tuple[int, int] | None = None,
    trains: Mapping[int, bool] | None = None,
    adds: int | None = None,
    **settings: Any,
) -> Told:
    """Plain SGD on a small net, with data of each worker's own.

    `told.steps` are gradients without weight decay. `spoils` is a rank and a step whose loss is no number; `trains`
    says from which steps on the first layer is frozen or trained, `adds` at which step the last one is given to the
    optimizer (None: it has it from the beginning).
    """
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw))
    first = [p for layer in (model[:2] if adds is not None else model) for p in layer.parameters()]
    plain = torch.optim.SGD(first, lr=RATE, momentum=heavy, weight_decay=decay)
    optimizer: Any = quorate.distribute(plain, model, with_one_worker="algorithm", **settings)
    worker = optimizer.__dict__["_quorate_worker"]
    begin = flat(model.parameters())
    told = Told(begin, torch.zeros_like(begin), begin)
    numbers = torch.Generator().manual_seed(100 + world.rank)
    for step in range(steps):
        if step in evaluates:
            with world.evaluate():
                told.means.append(flat(model.parameters()))
            with world.evaluate(at="replica"):
                told.replicas.append(flat(model.parameters()))
                told.given.append(flat(worker.strategy.consensus(worker)[0].segments()))
                told.masses.append(worker.strategy.consensus(worker)[1])
        if step == crashes:
            world.wire.crash()
        optimizer.zero_grad()
        world.wire.clock.sleep(pauses(world.rank, step))
        if step == adds:
            optimizer.add_param_group({"params": list(model[2].parameters())})
        if trains is not None and step in trains:
            model[0].requires_grad_(trains[step])
        loss = (world.rank + model(torch.randn(4, 3, generator=numbers))).square().mean()
        (loss * (math.nan if spoils == (world.rank, step) else 1.0)).backward()
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        own = [p.grad if id(p) in known and p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
        told.gradients += flat(own).nan_to_num(0.0)
        told.steps.append(flat(own))
        optimizer.step()
        told.rounds.append(worker.neighbours.round)
    if heavy:
        told.momentum = flat([optimizer.state[p]["momentum_buffer"] for p in model.parameters()])
    optimizer.finish()
    told.end = flat(model.parameters())
    told.lost = worker.neighbours.lost
    return told


def run(
    size: int,
    task: Callable[[Any], T],
    *,
    seed: int = 0,
    network: Network | None = None,
    faults: Sequence[Fault] = (),
    timeout: float = 120.0,
) -> list[T]:
    """What `task` returns on every worker of a virtual world that suffers `faults`."""

    live = joined(task)
    world = VirtualWorld(size, seed=seed, network=network, timeout=timeout)
    return world.run(lambda wire: live(Faulty(wire, faults) if faults else wire))


def speeds(draw: random.Random, size: int) -> Callable[[int, int], float]:
    """Some worker may be always slow; any may be late at times."""
    base = [draw.choice([0.0, 0.0, 0.01, 0.05]) for _ in range(size)]
    table = {(r, s): base[r] + (draw.random() < 0.2) * draw.uniform(0, 0.2) for r in range(size) for s in range(40)}
    return lambda rank, step: table[rank, step]


def assert_nothing_is_lost(found: list[Told]) -> None:
    """Plain SGD: whatever was mixed with what, the mean moves by the mean of all gradients that were ever computed."""
    moved = sum(told.gradients for told in found) * (RATE / len(found))
    for told in found:
        assert torch.equal(told.end, found[0].end)
        assert torch.allclose(told.end, found[0].begin - moved, atol=2e-6)
