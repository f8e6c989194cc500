"""Small trainings of gossip among virtual workers of which some die, and the laws of those that are left."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from quorate.wire.virtual.network import Network
from tests.support.gossip import RATE, flat, speeds
from tests.support.scene import NEVER, Scene, Trainer, note

NAMES = ["d-psgd", "sgp", "osgp", "ad-psgd", "d2", "relay", "choco-sgd", "dcd-psgd", "ecd-psgd", "noloco"]
GRAPHS = {
    "d-psgd": ["ring", "complete", "random-matching", "random:degree=3"],
    "sgp": ["one-peer-exponential", "exponential", "ring", "random-matching"],
    "osgp": ["one-peer-exponential", "exponential", "ring", "random-matching"],
    "ad-psgd": ["complete", "ring", "star"],
    "d2": ["ring", "complete"],
    "relay": ["path", "binary-tree", "star"],
    "choco-sgd": ["ring", "complete", "random:degree=3"],
    "dcd-psgd": ["ring", "complete"],
    "ecd-psgd": ["ring", "complete"],
    "noloco": ["random-matching", "ring", "complete"],
}
CODED: dict[str, dict[str, Any]] = {
    "choco-sgd": {"compress": "top-k", "density": 0.4, "dense_below": 0},
    "dcd-psgd": {"compress": "qsgd", "dense_below": 0},
    "ecd-psgd": {"compress": "qsgd", "dense_below": 0},
    "noloco": {"sync_every": 2, "outer_rate": 0.7},
}


@dataclass
class Told:
    """What a survivor tells of its training."""

    trainer: Trainer
    members: dict[int, tuple[int, ...]]
    """By exchange."""
    gradients: list[torch.Tensor] = field(default_factory=list)
    replicas: list[torch.Tensor] = field(default_factory=list)
    """After every step."""
    own: torch.Tensor = field(default_factory=lambda: torch.zeros(0))
    """Its replica, when all have rested last."""
    mass: float = 0.0
    masses: list[float] = field(default_factory=list)
    """Of all that lived when it was asked."""

    def __post_init__(self) -> None:
        self.near = self.trainer.worker.neighbours
        asked = self.near._members.of
        self.near._members.of = lambda number: self.members.setdefault(number, asked(number))

    def rest_last(self) -> None:
        worker = self.trainer.worker
        with self.trainer.world.evaluate(at="replica"):
            self.own = flat(worker.strategy.consensus(worker)[0].segments())
            self.mass = worker.strategy.consensus(worker)[1]
            self.masses = self.trainer.world.gather(self.mass)

    @property
    def end(self) -> torch.Tensor:
        return flat(self.trainer.model.parameters())


def trained(
    strategy: str,
    size: int,
    deaths: dict[int, int],
    *,
    seed: int = 0,
    network: Network | None = None,
    still_from: int = NEVER,
    **choice: Any,
) -> dict[int, Told]:
    """What the survivors tell, by rank; everyone else has died as planned: by rank, after how many calls to its wire.

    From step `still_from` on all gradients are zero.
    """
    told: dict[int, Told] = {}

    def begin(trainer: Trainer) -> None:
        told[trainer.rank] = Told(trainer, {})

    def loss(trainer: Trainer) -> torch.Tensor:
        return (trainer.model(trainer.draw()) + trainer.rank).square().mean() * float(trainer.step < still_from)

    def between(trainer: Trainer) -> None:
        told[trainer.rank].gradients.append(flat([p.grad for p in trainer.model.parameters()]))

    def after(trainer: Trainer) -> None:
        told[trainer.rank].replicas.append(flat(trainer.model.parameters()))

    def last(trainer: Trainer) -> None:
        told[trainer.rank].rest_last()

    fields = {"model": (3, 1), "seed": 1, "rate": RATE, "steps": 12, "pause": 0.01, "rest": note, **choice}
    hooks: Any = {"begin": begin, "loss": loss, "between": between, "after": after, "last": last}
    world = {"seed": seed, "network": network, "timeout": 60.0}
    return Scene(strategy, size, deaths=deaths, world=world, **fields, **hooks).survivors(lambda t: told[t.rank])


def planned(seed: int, name: str) -> dict[str, Any]:
    """Of `trained`."""
    draw = random.Random(seed)
    size = draw.choice([2, 3, 4, 5, 8])
    settings: dict[str, Any] = {"topology": draw.choice(GRAPHS[name]), **CODED.get(name, {})}
    if name in ("sgp", "osgp") and draw.random() < 0.3:
        settings["patience"] = 0.5
    if name == "ad-psgd":
        settings["overlap"] = draw.random() < 0.5
    victims = draw.sample(range(size), draw.choice([1, 1, 2, size - 1]) if size > 2 else 1)
    return {
        "strategy": name,
        "size": size,
        "deaths": {rank: draw.randint(1, draw.choice([8, 40, 110])) for rank in victims},
        "settings": settings,
        "seed": seed,
        "rests": tuple(step for step in (3, 7) if draw.random() < 0.4),
        "skips": [(draw.randrange(size), draw.choice([1, 5]))]
        if name not in ("d2", "relay") and draw.random() < 0.5
        else [],
        "pause": speeds(draw, size),
        "network": Network(latency=draw.choice([0.0, 1e-4, 5e-3]), bandwidth=draw.choice([1e6, 1e9])),
    }


def check(strategy: str, size: int, found: dict[int, Told]) -> None:
    """The laws."""
    first = next(iter(found.values()))
    by_number: dict[int, tuple[int, ...]] = {}
    for told in found.values():
        assert torch.equal(told.end, first.end)
        assert bool(torch.isfinite(told.end).all())
        assert told.near.round == first.near.round
        assert told.masses == first.masses
        assert told.near.lost_with == first.near.lost_with
        assert all(torch.equal(a, b) for a, b in zip(told.trainer.seen, first.trainer.seen, strict=True))
        for number, members in told.members.items():
            assert by_number.setdefault(number, members) == members
    if len(first.masses) > len(found):
        return  # somebody has died after that
    total = sum(first.masses)
    mean = sum(told.mass * told.own for told in found.values()) / total
    assert torch.allclose(first.end, mean, atol=1e-5)
    if strategy in ("sgp", "osgp"):
        lost = sum(first.near.lost_with.values()) + sum(told.near.lost for told in found.values())
        assert total + lost == pytest.approx(size, abs=1e-6)
