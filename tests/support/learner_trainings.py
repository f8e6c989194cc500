"""Trainings of learners of several workers, in which it can be counted how many steps are in the common point."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.wire.virtual.network import Link, Network
from tests.support.scene import Scene, Trainer, pause
from tests.unit.rounds.test_silence import stand_still
from tests.unit.strategies.test_decoupled_diloco import common


def numbers(optimizer: Any) -> list[Tensor]:
    """Parameters, and what the optimizer keeps of them."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [x for p in parameters for x in optimizer.state[p].values() if isinstance(x, Tensor)]
    return [x.detach().clone() for x in (*parameters, *kept)]


def of_zeros() -> torch.nn.Module:
    model = torch.nn.Linear(1, 3).double()
    for p in model.parameters():
        p.data.zero_()
    return model


@dataclass
class Training:
    """Gradients of the weight are 1, and so is the learning rate: the common point goes down by half of that for each
    step of each learner, if it counts once. Those of the bias are each worker's own."""

    size: int
    learners: int
    strategy: str
    settings: dict[str, Any]
    seed: int = 0
    steps: list[int] = field(default_factory=list)
    deaths: dict[int, int] = field(default_factory=dict)
    """By rank, after how many calls to the wire, counted from the first step."""
    evaluates: Callable[[int], Collection[int]] = lambda rank: ()
    """Before which of its steps a worker does."""
    momentum: float = 0.0
    stuck: dict[tuple[int, int], float] = field(default_factory=dict)
    """By rank and step, for how many seconds it stands still, task and all."""
    far: dict[int, float] = field(default_factory=dict)
    """By rank, how many seconds what rank 0 sends, which leads first, is on its way there."""
    slow: list[int] = field(default_factory=list)

    bits: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Of each worker's replica after each of its steps."""

    left: dict[int, Tensor] = field(default_factory=dict)
    """By rank, what its codec has left out of the weight by the end, in steps; of those that handed in."""

    def of(self, learner: int) -> list[int]:
        """Its workers."""
        return [rank for rank in range(self.size) if rank * self.learners // self.size == learner]

    def scene(self) -> Scene:
        draws = [random.Random(100 * self.seed + rank) for rank in range(self.size + 1)]
        noises = [torch.Generator().manual_seed(rank) for rank in range(self.size + 1)]

        def before(trainer: Trainer) -> None:
            rank = trainer.rank
            if trainer.step in self.evaluates(rank):
                pause(trainer)
            trainer.clock.sleep((0.01 + 0.01 * draws[rank].random()) * self.slow[rank])
            if (seconds := self.stuck.get((rank, trainer.step))) is not None:
                stand_still(seconds)
                trainer.clock.sleep(seconds)

        def between(trainer: Trainer) -> None:
            model = trainer.model
            model.weight.grad = torch.ones_like(model.weight)
            model.bias.grad = torch.randn(3, generator=noises[trainer.rank]).to(model.bias)

        def after(trainer: Trainer) -> None:
            self.bits[trainer.rank].append(b"".join(x.cpu().numpy().tobytes() for x in numbers(trainer.optimizer)))

        choice: dict[str, Any] = {"outer_rate": 1.0, "outer_momentum": 0.0, "sync_every": 4, **self.settings}
        hooks: Any = {"loss": lambda trainer: None, "before": before, "between": between, "after": after}
        fields: Any = {"model": of_zeros, "rate": 1.0, "heavy": self.momentum, "steps": self.steps, **hooks}
        links = {(0, rank): Link(latency=seconds) for rank, seconds in self.far.items()}
        network = Network(links={**links, **{(rank, 0): Link() for rank in self.far}})
        world = {"seed": self.seed, "network": network, "timeout": 60.0}
        settings = {"learners": self.learners, **choice}
        return Scene(self.strategy, self.size, deaths=self.deaths, world=world, settings=settings, **fields)

    def look(self, trainer: Trainer) -> list[float]:
        coding = trainer.worker.rounds.rounds._member.pending.coding
        if coding is not None and (error := coding.error_without(())) is not None:
            self.left[trainer.rank] = self.size * error.segments()[0].reshape(-1)
        return [float(x) for one in common(trainer.optimizer)[:2] for x in one.reshape(-1)]

    def run(self, dies_otherwise: Collection[int] = ()) -> list[list[float]]:
        """Where the common point of each of those that are left ended."""
        self.steps, self.slow = self.steps or [16] * self.size, self.slow or [1] * self.size
        scene = self.scene()
        outcomes = scene.outcomes(self.look)
        self.dead = {rank for rank, fault in scene.faults.items() if fault.fired}.union(dies_otherwise)
        assert [one.error for one in outcomes if one.rank not in self.dead and one.error is not None] == []
        return [one.result for one in outcomes if one.result is not None]

    def unequal(self) -> int:
        """After how many of their steps workers of one learner had not the same bits."""
        rows = [
            row
            for learner in range(self.learners)
            for row in zip(*(self.bits[r] for r in self.of(learner)), strict=False)
        ]
        return sum(len(set(row)) > 1 for row in rows)

    def counted(self, point: list[float]) -> float:
        """How many steps of learners are in the common point."""
        assert point[:3] == pytest.approx([point[0]] * 3, abs=1e-9)
        return -point[0] * 2

    def made(self, *, at_most: bool) -> int:
        """How many learners have made; else of those only of which somebody is left."""
        left = set(range(self.size)) - self.dead
        found = 0
        for workers in map(self.of, range(self.learners)):
            if at_most or left.intersection(workers):
                found += max(len(self.bits[rank]) + (at_most and rank in self.dead) for rank in workers)
        return found


ASYNC: dict[str, Any] = {"momentum_every": 2}
DECOUPLED: list[dict[str, Any]] = [
    {"averaging": "mean", "overlap": overlap, "fragments": fragments, "wait_for": wait_for}
    for overlap in (0, 1)
    for fragments in (1, 2)
    for wait_for in (1, "majority", "all")
]


def drawn(seed: int, **more: Any) -> Training:
    """Any training."""
    draw = random.Random(seed)
    size = draw.choice([2, 3, 4, 5, 6])
    is_async = draw.random() < 0.5
    strategy, settings = ("async-local-sgd", ASYNC) if is_async else ("decoupled-diloco", draw.choice(DECOUPLED))
    slow = [draw.choice([1, 1, 4]) for _ in range(size)]
    return Training(size, draw.randint(1, size - 1), strategy, settings, seed=seed, slow=slow, **more)
