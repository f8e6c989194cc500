"""Small trainings of gossip among virtual workers of which some die, and the laws of those that are left."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import quorate
from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.faulty import Fault, Faulty
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.gossip import RATE, flat, speeds

NEVER = 1 << 40
NAMES = ["d-psgd", "sgp", "osgp", "ad-psgd", "d2", "relay", "choco-sgd", "dcd-psgd", "ecd-psgd"]
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
}
CODED: dict[str, dict[str, Any]] = {
    "choco-sgd": {"compress": "top-k", "density": 0.4, "dense_below": 0},
    "dcd-psgd": {"compress": "qsgd", "dense_below": 0},
    "ecd-psgd": {"compress": "qsgd", "dense_below": 0},
}


@dataclass
class Told:
    """What a survivor tells of its training."""

    own: torch.Tensor
    """Its replica, when all have rested last."""
    masses: list[float]
    """Of all that lived when it was asked."""
    mass: float
    end: torch.Tensor
    lost: float
    lost_with: dict[int, float]
    round: int
    members: dict[int, tuple[int, ...]]
    """By exchange."""
    means: list[torch.Tensor]
    times: list[float]
    """When its steps ended."""
    replicas: list[torch.Tensor]
    """After every step."""
    gradients: list[torch.Tensor]


@dataclass(kw_only=True)
class Plan:
    """One training, and who dies in it: by rank, after how many calls to its wire, counted from the first step."""

    size: int
    deaths: dict[int, int]
    settings: dict[str, Any]
    seed: int = 0
    steps: int = 12
    evaluates: tuple[int, ...] = ()
    pauses: Callable[[int, int], float] = lambda rank, step: 0.01
    network: Network | None = None
    still_from: int = NEVER
    """From this step on all gradients are zero."""
    skips: tuple[int, int] | None = None
    """A rank, and a step that it does not make."""
    drops: list[Fault] = field(default_factory=list)
    """Messages that are lost; counted from the beginning."""
    faults: dict[int, Fault] = field(default_factory=dict)

    def train(self, world: quorate.World, faulty: Faulty) -> Told:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        plain = torch.optim.SGD(model.parameters(), lr=RATE)
        optimizer: Any = quorate.distribute(plain, model, with_one_worker="algorithm", **self.settings)
        near = optimizer.__dict__["_quorate_worker"].neighbours
        members: dict[int, tuple[int, ...]] = {}
        asked = near._members.of
        near._members.of = lambda number: members.setdefault(number, asked(number))
        world.barrier()
        if world.rank in self.faults:
            self.faults[world.rank].at = faulty.calls + self.deaths[world.rank]
        draw = torch.Generator().manual_seed(world.rank)
        means, times, replicas, gradients = [], [], [], []
        for step in range(self.steps):
            if step in self.evaluates:
                with world.evaluate():
                    means.append(flat(model.parameters()))
            if (world.rank, step) == self.skips:
                continue
            optimizer.zero_grad()
            world.wire.clock.sleep(self.pauses(world.rank, step))
            loss = (model(torch.randn(4, 3, generator=draw)) + world.rank).square().mean()
            (loss * float(step < self.still_from)).backward()
            gradients.append(flat([p.grad for p in model.parameters()]))
            optimizer.step()
            times.append(world.wire.clock.now())
            replicas.append(flat(model.parameters()))
        with world.evaluate(at="replica"):
            worker = optimizer.__dict__["_quorate_worker"]
            own = flat(worker.strategy.consensus(worker)[0].segments())
            mass = worker.strategy.consensus(worker)[1]
            masses = world.gather(mass)
        optimizer.finish()
        end = flat(model.parameters())
        books = near.lost, near.lost_with, near.round
        return Told(own, masses, mass, end, *books, members, means, times, replicas, gradients)

    def run(self) -> dict[int, Told]:
        """What the survivors tell, by rank; everyone else has died as planned."""
        self.faults = {rank: Fault(kind="stop", rank=rank, at=NEVER) for rank in self.deaths}

        def live(wire: Wire) -> Told:
            faulty = Faulty(wire, [*self.faults.values(), *self.drops])
            place = current.enter(faulty, thread_only=True)
            try:
                told = self.train(quorate.join(), faulty)
                place.leave()
                return told
            finally:
                current.forget(thread_only=True)

        found = {}
        world = VirtualWorld(self.size, seed=self.seed, network=self.network, timeout=60.0)
        for one in world.outcomes(live):
            is_dead = one.rank in self.faults and bool(self.faults[one.rank].fired)
            assert one.is_crashed == is_dead
            assert is_dead or one.error is None, one.error
            if one.result is not None:
                found[one.rank] = one.result
        return found


def planned(seed: int, name: str) -> Plan:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 4, 5, 8])
    settings: dict[str, Any] = {"strategy": name, "topology": draw.choice(GRAPHS[name]), **CODED.get(name, {})}
    if name in ("sgp", "osgp") and draw.random() < 0.3:
        settings["patience"] = 0.5
    if name == "ad-psgd":
        settings["overlap"] = draw.random() < 0.5
    victims = draw.sample(range(size), draw.choice([1, 1, 2, size - 1]) if size > 2 else 1)
    return Plan(
        size=size,
        deaths={rank: draw.randint(1, draw.choice([8, 40, 110])) for rank in victims},
        settings=settings,
        seed=seed,
        evaluates=tuple(step for step in (3, 7) if draw.random() < 0.4),
        skips=(draw.randrange(size), draw.choice([1, 5]))
        if name not in ("d2", "relay") and draw.random() < 0.5
        else None,
        pauses=speeds(draw, size),
        network=Network(latency=draw.choice([0.0, 1e-4, 5e-3]), bandwidth=draw.choice([1e6, 1e9])),
    )


def check(plan: Plan, found: dict[int, Told]) -> None:
    """The laws."""
    first = next(iter(found.values()))
    by_number: dict[int, tuple[int, ...]] = {}
    for told in found.values():
        assert torch.equal(told.end, first.end)
        assert bool(torch.isfinite(told.end).all())
        assert told.round == first.round
        assert told.masses == first.masses
        assert told.lost_with == first.lost_with
        assert all(torch.equal(a, b) for a, b in zip(told.means, first.means, strict=True))
        for number, members in told.members.items():
            assert by_number.setdefault(number, members) == members
    if len(first.masses) > len(found):
        return  # somebody has died after that
    total = sum(first.masses)
    mean = sum(told.mass * told.own for told in found.values()) / total
    assert torch.allclose(first.end, mean, atol=1e-5)
    if plan.settings["strategy"] in ("sgp", "osgp"):
        lost = sum(first.lost_with.values()) + sum(told.lost for told in found.values())
        assert total + lost == pytest.approx(plan.size, abs=1e-6)
