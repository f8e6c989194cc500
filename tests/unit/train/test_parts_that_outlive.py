"""`all-reduce` with `on_death="continue"`: parts travel during backward, and deaths in it leave the survivors equal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import quorate
from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire
from quorate.replica import replica
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.by_messages import ByMessages
from tests.support.faulty import Fault, Faulty
from tests.support.joined import joined
from tests.support.scene import Scene, Trainer, flat, ones

DEPTH, STEPS, NEVER = 5, 4, 1 << 40
SECONDS = 2.0
"""A training takes a fraction of one; a wait that nothing ends takes sixty."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One part for each layer's weight and bias, about."""
    monkeypatch.setattr(replica, "layout_of", partial(layout_of, part_bytes=48, first_part_bytes=48))
    yield
    current.forget(thread_only=True)


class Net(nn.Module):
    """Layers one after the other; `is_tied`: the last one twice, and each use recomputed on its own, so that
    its gradient is added to again after its part has left."""

    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(DEPTH))
        self.is_tied = is_tied
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=draw) / 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = (checkpoint(layer, x, use_reentrant=True) if self.is_tied else layer(x)).tanh()
        return checkpoint(self.layers[-1], x, use_reentrant=True).tanh() if self.is_tied else x


@dataclass
class Result:
    """The steps of a worker."""

    replicas: list[Tensor] = field(default_factory=list)
    """After each step."""
    counts: list[int] = field(default_factory=list)
    """Whose gradients were in each mean: how many."""
    means: list[Tensor] = field(default_factory=list)


@dataclass
class Plan:
    """One training; who dies in it, after how many calls to its wire, counted from the first step."""

    size: int = 3
    seed: int = 0
    on_death: str = "continue"
    is_tied: bool = False
    both: bool = False
    """Whether there are two optimizers, each of half of the layers."""
    accumulates: int = 0
    by_messages: bool = False
    deaths: dict[int, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def train(self, faulty: Faulty, world: quorate.World) -> Result:
        result, model = Result(), Net(is_tied=self.is_tied)
        halves = [model.layers[:2], model.layers[2:]] if self.both else [model]
        chosen: Any = {"on_death": self.on_death, "with_one_worker": "algorithm"}
        made: list[Any] = [
            quorate.distribute(
                torch.optim.SGD(half.parameters(), lr=0.1, momentum=0.9), half, "all-reduce", name=f"of {i}", **chosen
            )
            for i, half in enumerate(halves)
        ]
        world.barrier()
        for fault in self.faults:
            if fault.rank == world.rank:
                fault.at = faulty.calls + self.deaths[world.rank]
        draw, pauses = torch.Generator().manual_seed(100 + world.rank), random.Random(self.seed + world.rank)
        for _ in range(STEPS):
            for optimizer in made:
                optimizer.zero_grad()
            for _ in range(self.accumulates):
                with made[0].accumulate():
                    self.loss(model, draw).backward()
            world.wire.clock.sleep(pauses.choice([0.0, 0.001, 0.03]))
            self.loss(model, draw).backward()
            result.counts.append(made[0].__dict__["_quorate_worker"].means.reducer.counted)
            result.means.append(flat(p.grad for p in model.parameters()).clone())
            for optimizer in made:
                optimizer.step()
            result.replicas.append(flat(model))
        for optimizer in made:
            optimizer.finish()
        return result

    def loss(self, model: nn.Module, draw: torch.Generator) -> Tensor:
        x = torch.randn(3, 4, generator=draw, requires_grad=self.is_tied)
        loss: Tensor = model(x).square().mean()
        return loss

    def run(self, **settings: Any) -> tuple[dict[int, Result], VirtualWorld]:
        """Return the results of the survivors."""
        self.faults = [Fault(kind="stop", rank=rank, at=NEVER) for rank in self.deaths]

        def live(wire: Wire) -> Result:
            faulty = Faulty(wire, self.faults)
            return joined(partial(self.train, faulty))(ByMessages(faulty) if self.by_messages else faulty)

        world = VirtualWorld(self.size, seed=self.seed, timeout=60.0, **settings)
        outcomes = world.outcomes(live)
        dead = {fault.rank for fault in self.faults if fault.fired}
        for outcome in outcomes:
            assert outcome.rank in dead or outcome.error is None, outcome.error
        return {outcome.rank: outcome.result for outcome in outcomes if outcome.result is not None}, world


def equal(first: list[Tensor], other: list[Tensor]) -> bool:
    return len(first) == len(other) and all(torch.equal(x, y) for x, y in zip(first, other, strict=True))


def test_parts_are_under_way_before_backward_ends() -> None:
    """The wire of rank 0 tells how many sums were called, and the listener when backward had ended."""
    counts: list[int] = []

    def play(trainer: Trainer) -> int:
        worker, loop = trainer.worker, trainer.optimizer.__dict__["_quorate_loop"]
        called, ended = worker.wire.meter.messages_out, loop.backward_ended
        listed = called["all_reduce"]
        loop.backward_ended = lambda: (counts.append(called["all_reduce"] - listed), ended())
        trainer.train(1).finish()
        return len(worker.means.layout.parts)

    parts = Scene(size=2, model=partial(Net, is_tied=False), loss=ones, on_death="continue").act(play)
    assert counts == [2 * (parts[0] - 1)] * 2, "each sum is two messages, and the last part carries the header"
    assert parts[0] > DEPTH / 2


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "case",
    [{}, {"is_tied": True}, {"both": True}, {"accumulates": 2}, {"by_messages": True}],
    ids=lambda case: "-".join(case) or "plain",
)
def test_the_bits_are_those_of_plain_all_reduce_as_long_as_all_live(case: dict[str, Any], size: int) -> None:
    plain, _ = Plan(size=size, on_death="stop", **case).run()
    outliving, _ = Plan(size=size, **case).run()
    for rank in range(size):
        assert equal(plain[rank].replicas, outliving[rank].replicas)
        assert equal(plain[rank].means, outliving[rank].means)


def planned(seed: int) -> Plan:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 4])
    victims = draw.sample(range(size), draw.choice([1, 1, size - 1]))
    kind = draw.choice(["is_tied", "both", "by_messages", "", ""])
    return Plan(
        size=size,
        seed=seed,
        accumulates=draw.choice([0, 0, 1]),
        deaths={rank: draw.randint(1, draw.choice([4, 16, 40])) for rank in victims},
        **({kind: True} if kind else {}),  # type: ignore[arg-type]
    )


def outlived(plan: Plan) -> int:
    """How many died in it. Those that are left have taken equal steps, each with the gradients of the same workers."""
    results, world = plan.run()
    assert world.stage.scheduler.now < SECONDS
    assert set(results) == set(range(plan.size)) - {fault.rank for fault in plan.faults if fault.fired}
    first = next(iter(results.values()))
    for result in results.values():
        assert equal(result.replicas, first.replicas)
        assert equal(result.means, first.means)
        assert result.counts == first.counts == sorted(first.counts, reverse=True)
    return sum(fault.fired for fault in plan.faults)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("at", range(1, 10))
def test_a_death_at_each_call_of_a_backward_is_outlived(at: int, victim: int) -> None:
    assert outlived(Plan(deaths={victim: at}, seed=at)) == 1


@pytest.mark.parametrize("victim", [0, -1])
@pytest.mark.parametrize(
    ("size", "at"), [*((3, at) for at in (2, 6, 17, 18, 19, 38)), *((4, at) for at in (25, 26, 27, 28, 57))]
)
def test_a_death_between_the_messages_of_one_part_is_outlived(size: int, at: int, victim: int) -> None:
    """Among three workers the 18th and the 38th call are between the messages of the last part of a step, of four the
    26th, 27th and 57th: some survivors have the sum, and others do not."""
    assert outlived(Plan(size=size, deaths={victim % size: at}, seed=at, by_messages=True)) == 1


@pytest.mark.seeds(4, 12)
def test_random_deaths_are_outlived(seed: int) -> None:
    outlived(planned(seed))


@pytest.mark.parametrize("at", range(1, 8))
def test_a_mean_formed_anew_is_that_of_those_whose_gradients_count(at: int) -> None:
    """Against the gradients that each worker has alone: those of one step are in its mean wholly, or not at all."""
    own = [own_gradient(rank) for rank in range(3)]
    results, _ = Plan(deaths={1: at}).run()
    for result in results.values():
        who = [0, 1, 2] if result.counts[0] == 3 else [0, 2]
        torch.testing.assert_close(result.means[0], torch.stack([own[rank] for rank in who]).mean(0))


def own_gradient(rank: int) -> Tensor:
    model = Net(is_tied=False)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(100 + rank))
    model(x).square().mean().backward()
    return flat(p.grad for p in model.parameters())
