"""Small trainings of gossip that keeps copies of neighbours, and what the copies were at both ends of every edge."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quorate.core.vectors import Flat
from tests.support.scene import Scene, Trainer

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


def scene(
    strategy: str,
    size: int,
    *,
    dtype: torch.dtype = torch.float32,
    begins_apart: bool = False,
    each: Callable[[Any], object] = lambda worker: None,
    seed: int = 0,
    **choice: Any,
) -> Scene:
    """Plain SGD on points.

    Args:
        begins_apart: Whether the script gives each worker other numbers once it is distributed.
        each: Called with the worker after each step.
    """

    def begin(trainer: Trainer) -> None:
        trainer.seen.append(Told())
        if begins_apart:
            with torch.no_grad():
                for p in trainer.model.parameters():
                    p.copy_(target(100 + trainer.rank, dtype).view(p.shape))

    def loss(trainer: Trainer) -> Tensor:
        model, to = trainer.model, target(trainer.rank, dtype)
        return 0.5 * ((model.x - to).square().sum() + (model.y - to.reshape(-1)).square().sum())

    def after(trainer: Trainer) -> None:
        _look(trainer.worker, trainer.seen[0])
        each(trainer.worker)

    fields = {"model": partial(Point, dtype), "rate": RATE, "steps": 12, **choice}
    return Scene(strategy, size, begin=begin, loss=loss, after=after, world={"seed": seed}, **fields)


def told(trainer: Trainer) -> Told:
    """What this worker tells at the end."""
    trainer.seen[0].end = _numbers(trainer.worker.parameters)
    found: Told = trainer.seen[0]
    return found


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
