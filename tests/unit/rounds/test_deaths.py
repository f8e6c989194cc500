"""Workers that die at any point of a training in rounds: the others go on, equal, and nothing else is lost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import PeerFailed
from quorate.rounds.ledger import Ledger
from quorate.rounds.log import Round
from quorate.wire import current
from quorate.wire.faulty import Fault, Faulty
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import Outcome, VirtualWorld
from tests.support.pending import pending_weight
from tests.support.scene import Scene, parameters, ranked, zeros
from tests.unit.rounds.test_laws import adam, net, sgd, speeds

NEVER = 1 << 40
STEPS = 9


@dataclass
class Told:
    """What a survivor tells of its training."""

    parameters: torch.Tensor
    ledger: Ledger
    pending: float
    rounds: list[Round] = field(default_factory=list)
    means: list[Any] = field(default_factory=list)
    dead: frozenset[int] = frozenset()
    times: list[float] = field(default_factory=list)
    """When its steps ended."""


@dataclass(kw_only=True)
class Plan:
    """One training, and who dies in it: by rank, after how many calls to its wire, counted from the first step."""

    size: int
    deaths: dict[int, int]
    seed: int = 0
    evaluates: tuple[int, ...] = ()
    pauses: Callable[[int, int], float] = lambda rank, step: 0.01
    make: Callable[[Any], torch.optim.Optimizer] = sgd
    network: Network | None = None
    strategy: str = "quorum"
    settings: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    has_closure: bool = False
    wraps: Callable[[Wire], Wire] = lambda wire: wire
    """What the workers see of their wires."""

    def train(self, world: quorate.World, faulty: Faulty) -> Told:
        model, seen, means, times = net(), [], [], []
        optimizer: Any = quorate.distribute(
            self.make(model.parameters()), model, strategy=self.strategy, with_one_worker="algorithm", **self.settings
        )
        worker = optimizer.__dict__["_quorate_worker"]
        if worker.has_rounds:
            noted = worker._rounds.watch.note_round
            worker._rounds.watch.note_round = lambda one: (seen.append(one), noted(one))
        world.barrier()
        for fault in self.faults:
            if fault.rank == world.rank:
                fault.at = faulty.calls + self.deaths[world.rank]
        draw = torch.Generator().manual_seed(100 + world.rank)
        for step in range(STEPS):
            if step in self.evaluates:
                with world.evaluate():
                    means.append(world.gather(world.rank))
            optimizer.zero_grad()
            world.wire.clock.sleep(self.pauses(world.rank, step))
            x = torch.randn(4, 3, generator=draw)

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                loss = model(x).square().mean()
                loss.backward()
                return loss

            if self.has_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            times.append(world.wire.clock.now())
        means.append(world.mean(torch.ones(2), weight=2.0).tolist())
        optimizer.finish()
        flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        if (common := getattr(worker.state, "common", None)) is not None:  # nothing makes it equal in the end
            flat = torch.cat([flat, *(x.reshape(-1) for x in common.segments())])
        if not worker.has_rounds:
            return Told(flat, Ledger(), 0.0, seen, means, world.wire.dead, times)
        rounds = worker._rounds.rounds
        return Told(flat, rounds.ledger, pending_weight(rounds), seen, means, world.wire.dead, times)

    def run(self) -> tuple[list[Outcome[Told]], VirtualWorld]:
        self.faults = [Fault(kind="stop", rank=rank, at=NEVER) for rank in self.deaths]

        def live(wire: Wire) -> Told:
            faulty = Faulty(wire, self.faults)
            place = current.enter(self.wraps(faulty), thread_only=True)
            try:
                measures = self.train(quorate.join(), faulty)
                place.leave()
                return measures
            finally:
                current.forget(thread_only=True)

        world = VirtualWorld(self.size, seed=self.seed, network=self.network, timeout=60.0)
        return world.outcomes(live), world


def check(plan: Plan, outcomes: list[Outcome[Told]]) -> list[Told]:
    """The laws; returns what the survivors tell."""
    dead = {fault.rank for fault in plan.faults if fault.fired}
    for one in outcomes:
        assert one.is_crashed == (one.rank in dead)
        assert one.rank in dead or one.error is None, one.error
    found = {one.rank: one.result for one in outcomes if one.result is not None}
    assert set(found) == set(range(plan.size)) - dead
    first = next(iter(found.values()))
    by_number: dict[int, Any] = {}
    for rank, measures in found.items():
        assert torch.equal(measures.parameters, first.parameters)
        assert measures.means[-1] == [1.0, 1.0]
        assert measures.means == first.means
        if plan.strategy != "quorum":
            continue
        ledger = measures.ledger
        assert measures.pending == 0
        assert ledger.produced == ledger.taken + ledger.expired == STEPS
        assert ledger.expired == 0 or plan.settings["max_staleness"] == 0
        for one in measures.rounds:
            header = one.term, one.weight, one.live, sorted(one.contributors.items())
            assert by_number.setdefault(one.number, header) == header
        numbers = [one.number for one in measures.rounds]
        assert numbers == sorted(set(numbers))
        taken = sum(n for one in measures.rounds for _, n in one.contributors.get(rank, ()))
        assert taken == ledger.taken or numbers != list(range(1, len(numbers) + 1))
    return list(found.values())


def planned(seed: int) -> Plan:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5, 8])
    victims = draw.sample(range(size), draw.choice([1, 1, 2, size - 1]) if size > 2 else 1)
    return Plan(
        size=size,
        deaths={rank: draw.randint(1, draw.choice([8, 40, 110])) for rank in victims},
        seed=seed,
        evaluates=tuple(step for step in (3, 6) if draw.random() < 0.4),
        pauses=speeds(draw, size),
        make=draw.choice([sgd, adam]),
        network=Network(latency=draw.choice([0.0, 1e-4, 5e-3]), bandwidth=draw.choice([1e6, 1e9])),
        settings={
            "wait_for": draw.choice(["all", "majority", "designated", 1, 2, 0.6]),
            "max_staleness": draw.choice([0, 1, 3, 16]),
        },
    )


@pytest.mark.seeds(6, 16)
def test_random_deaths(seed: int) -> None:
    plan = planned(seed)
    outcomes, _ = plan.run()
    check(plan, outcomes)


@pytest.mark.seeds(4, 8)
def test_random_deaths_in_step(seed: int) -> None:
    """The same where every step is a sum of all that are left."""
    plan = planned(seed)
    plan.strategy, plan.settings = "all-reduce", {"on_death": "continue"}
    outcomes, _ = plan.run()
    check(plan, outcomes)


@pytest.mark.seeds(2, 4)
def test_random_deaths_in_closures(seed: int) -> None:
    """The same where the step asks for the loss, which is the mean of all that are left."""
    plan = planned(seed)
    plan.strategy, plan.settings, plan.has_closure = "all-reduce", {"on_death": "continue"}, True
    outcomes, _ = plan.run()
    check(plan, outcomes)


@pytest.mark.seeds(2, 4)
@pytest.mark.parametrize("strategy", ["local-sgd", "slowmo", "diloco", "post-local-sgd"])
def test_random_deaths_between_means(seed: int, strategy: str) -> None:
    plan = planned(seed)
    plan.deaths = {rank: max(1, count // 4) for rank, count in plan.deaths.items()}
    plan.strategy, plan.settings = strategy, {"sync_every": random.Random(seed).choice([1, 2, 4])}
    outcomes, _ = plan.run()
    check(plan, outcomes)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("strategy", ["quorum", "all-reduce"])
def test_those_plans_strike_and_the_rest_is_soon_at_work(victim: int, strategy: str) -> None:
    settings = {"on_death": "continue"} if strategy == "all-reduce" else {"wait_for": "all"}
    plan = Plan(size=3, deaths={victim: 10}, strategy=strategy, settings=settings)
    outcomes, _ = plan.run()
    found = check(plan, outcomes)
    assert [fault.fired for fault in plan.faults] == [1]
    assert all(measures.dead == {victim} for measures in found)
    for measures in found:
        halt = max(late - early for early, late in itertools.pairwise(measures.times))
        assert halt < 0.1, "until it is noticed, 0.05 s pass"


def test_without_it_a_death_is_the_end_of_all() -> None:
    plan = Plan(size=3, deaths={1: 30}, settings={"on_death": "stop"})
    outcomes, _ = plan.run()
    assert [fault.fired for fault in plan.faults] == [1]
    for rank in (0, 2):
        assert isinstance(outcomes[rank].error, PeerFailed)
        assert "rank 1" in str(outcomes[rank].error)


@pytest.mark.parametrize("strategy", ["quorum", "all-reduce", "local-sgd"])
def test_the_mean_is_that_of_those_that_are_left(strategy: str) -> None:
    """Rank r brings r + 1 in each of four steps; rank 2 dies before its third."""
    settings: dict[str, dict[str, Any]] = {
        "quorum": {"wait_for": "all"},
        "all-reduce": {"on_death": "continue"},
        "local-sgd": {"sync_every": 1},
    }

    chosen = {"model": zeros(), "rate": 1.0, "loss": ranked, "steps": 4, "pause": 0.01, **settings[strategy]}
    ends = Scene(strategy, dies={2: 2}, **chosen).survivors(parameters)
    assert ends[0].item() == ends[1].item() == pytest.approx(-(2 + 2 + 1.5 + 1.5), rel=1e-6)
