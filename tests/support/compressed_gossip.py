"""Small trainings of gossip that keeps copies of neighbours, and what the copies were at both ends of every edge."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import quorate
from quorate.core.vectors import Flat
from quorate.launch.worker.world import World

RATE = 0.1
NAMES = ["choco-sgd", "dcd-psgd", "ecd-psgd"]
SHAPE = (12, 10)


def target(rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Where the loss of this worker draws the parameters to."""
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(rank), dtype=torch.float64).to(dtype)


class Point(nn.Module):
    """A matrix, which is coded, and as many numbers in a row, which are not."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.x, self.y = (nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in (SHAPE, (SHAPE[0] * SHAPE[1],)))


@dataclass
class Told:
    """What one worker tells."""

    replicas: list[Tensor] = field(default_factory=list)
    """The matrix and the row after each step, with what was on its way to them."""
    models: list[Tensor] = field(default_factory=list)
    """The same, as the model has them."""
    own: dict[int, str] = field(default_factory=dict)
    """By number of the exchange: its own copy, as a digest of its bits."""
    of: dict[int, dict[int, str]] = field(default_factory=dict)
    """The copies of its neighbours."""
    sent: list[int] = field(default_factory=list)
    """Bytes to neighbours up to the end of each step."""
    end: Tensor = field(default_factory=lambda: torch.zeros(0))


@dataclass(kw_only=True)
class Training:
    """Plain SGD on points; `settings` are those of `distribute`."""

    settings: dict[str, Any]
    steps: int = 12
    dtype: torch.dtype = torch.float32
    rate: float = RATE
    begins_apart: bool = False
    """Whether the script gives each worker other numbers once it is distributed."""
    evaluates: tuple[int, ...] = ()
    ends_after: Callable[[int], int] | None = None
    """By rank, where workers make unequal numbers of steps."""
    pauses: Callable[[int, int], float] = lambda rank, step: 0.0
    dies: tuple[int, int] | None = None
    """A rank, and the step before which it dies."""
    saves_at: int | None = None
    loads: bool = False
    each: Callable[[Any], None] = lambda worker: None
    """Called after each step."""

    def live(self, world: World) -> Told:
        model, told = Point(self.dtype), Told()
        plain = torch.optim.SGD(model.parameters(), lr=self.rate)
        optimizer: Any = quorate.distribute(plain, model, with_one_worker="algorithm", **self.settings)
        worker = optimizer.__dict__["_quorate_worker"]
        step = (quorate.load() or 0) if self.loads else 0
        if self.begins_apart:
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(target(100 + world.rank, self.dtype).view(p.shape))
        while step < (self.steps if self.ends_after is None else self.ends_after(world.rank)):
            if step in self.evaluates:
                with world.evaluate():
                    pass
            if (world.rank, step) == self.dies:
                world.wire.crash()
            optimizer.zero_grad()
            world.wire.clock.sleep(self.pauses(world.rank, step))
            to = target(world.rank, self.dtype)
            loss = (model.x - to).square().sum() + (model.y - to.reshape(-1)).square().sum()
            (0.5 * loss).backward()
            optimizer.step()
            step += 1
            self._look(worker, told)
            self.each(worker)
            if step == self.saves_at:
                quorate.save()
        optimizer.finish()
        told.end = _numbers(worker.parameters)
        return told

    @staticmethod
    def _look(worker: Any, told: Told) -> None:
        worker.strategy.drain(worker)
        told.models.append(_numbers(worker.parameters))
        told.replicas.append(_numbers(worker.strategy.consensus(worker)[0]))
        told.sent.append(worker.wire.meter.bytes_out["send"])
        s, number = worker.state, worker.neighbours.round
        if hasattr(s, "own"):
            told.own[number] = _digest(s.own)
            told.of[number] = {peer: _digest(s.of[peer]) for peer in s.of if s.met.get(peer) == number}


def _numbers(x: Flat) -> Tensor:
    return torch.cat([numbers.reshape(-1) for numbers in x.segments()]).clone()


def _digest(x: Flat) -> str:
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in x.parts)).hexdigest()


def assert_copies_are_equal(found: dict[int, Told]) -> int:
    """At every time, both ends of every edge have the same bits; how many times they were compared."""
    compared = 0
    for told in found.values():
        for number, copies in told.of.items():
            for peer, bits in copies.items():
                if peer in found and number in found[peer].own:
                    assert bits == found[peer].own[number], f"the copy of {peer} in exchange {number}"
                    compared += 1
    return compared
