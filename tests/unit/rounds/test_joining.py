"""Workers that join a training in rounds at any time, while others die: all end equal, and every example comes once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, Stopped
from quorate.rounds.buffer import Ledger
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import Outcome, VirtualWorld
from tests.support.faulty import Fault, Faulty
from tests.support.joined import joined
from tests.support.pending import pending_weight
from tests.support.scene import Scene, ones

NEVER = 1 << 40
EXAMPLES, BATCH, EPOCHS = 96, 4, 3
INPUTS = torch.randn(EXAMPLES, 5, generator=torch.Generator().manual_seed(0))


@dataclass
class Told:
    """What a worker tells that came to the end."""

    began: int
    """The first epoch it trained in."""
    tensors: list[torch.Tensor]
    ledger: Ledger
    pending: float
    steps: int
    evaluations: dict[int, list[int]] = field(default_factory=dict)
    """By epoch, the ranks that called it."""


@dataclass(kw_only=True)
class Plan:
    """One training: who joins when (virtual seconds, by rank), and who dies, after how many calls to its wire."""

    size: int
    joins: dict[int, float]
    deaths: dict[int, int] = field(default_factory=dict)
    seed: int = 0
    epochs: int = EPOCHS
    evaluates: bool = True
    share: str = "dynamic"
    width: int = 4
    freezes: int | None = None
    """The epoch from which on the first layer that was trained is not any more."""
    pace: Callable[[int], float] = lambda rank: 0.01
    network: Network | None = None
    strategy: str = "quorum"
    settings: dict[str, Any] = field(default_factory=dict)
    given: list[tuple[int, int, int]] = field(default_factory=list)
    """Of every example that was computed: epoch, example, rank."""
    faults: list[Fault] = field(default_factory=list)
    stood: dict[tuple[int, int], dict[int, float]] = field(default_factory=dict)
    """Under group averaging, by mean of all and turn after it: a sum of each worker's parameters, by rank."""

    def run(self) -> list[Outcome[Told]]:
        self.faults = [Fault(kind="stop", rank=rank, at=NEVER) for rank in self.deaths]
        world = VirtualWorld(self.size, joiners=len(self.joins), seed=self.seed, network=self.network, timeout=60.0)
        return world.outcomes(self._live)

    def _live(self, wire: Wire) -> Told:
        wire.clock.sleep(self.joins.get(wire.rank, 0.0))
        faulty = Faulty(wire, self.faults)
        return joined(partial(self._train, faulty))(faulty)

    def _train(self, faulty: Faulty, world: quorate.World) -> Told:
        torch.manual_seed(world.rank)
        frozen = torch.nn.Linear(5, 5).requires_grad_(False)
        trained = torch.nn.Sequential(
            torch.nn.Linear(5, self.width), torch.nn.BatchNorm1d(self.width), torch.nn.Linear(self.width, 1)
        )
        model = torch.nn.Sequential(frozen, trained)
        optimizer: Any = quorate.distribute(
            torch.optim.SGD(trained.parameters(), lr=0.004 / self.width, momentum=0.9),
            model,
            self.strategy,
            **self.settings,
        )
        for fault in self.faults:
            if fault.rank == world.rank:
                fault.at = faulty.calls + self.deaths[world.rank]
        data = TensorDataset(INPUTS, torch.arange(EXAMPLES))
        loader = quorate.loader(data, BATCH, share=self.share)
        measures = Told(loader.epoch, [], Ledger(), 0.0, 0)
        for epoch in range(loader.epoch, self.epochs):
            if self.freezes is not None:
                trained[0].requires_grad_(epoch < self.freezes)
            for inputs, numbers in loader:
                world.wire.clock.sleep(self.pace(world.rank))
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                measures.steps += 1
                self._note(world.rank, optimizer)
                self.given += [(epoch, number, world.rank) for number in numbers.tolist()]
            if self.evaluates:
                with world.evaluate():
                    measures.evaluations[epoch] = world.gather(world.rank)
        optimizer.finish()
        measures.tensors = [x.detach().clone() for x in (*model.parameters(), *model.buffers())]
        worker = optimizer.__dict__["_quorate_worker"]
        if (common := getattr(worker.state, "common", None)) is not None:  # nothing makes it equal in the end
            measures.tensors += [x.clone() for x in common.segments()]
        if self.strategy == "quorum":
            rounds = worker.rounds.rounds
            measures.ledger, measures.pending = rounds.ledger, pending_weight(rounds)
        return measures

    def _note(self, rank: int, optimizer: Any) -> None:
        worker = optimizer.__dict__["_quorate_worker"]
        turn = getattr(worker.state, "meetings", getattr(worker.state, "steps", 0))
        means = getattr(worker.state, "means", worker.neighbours.round)
        numbers = sum(float(p.detach().double().sum()) for group in optimizer.param_groups for p in group["params"])
        self.stood.setdefault((int(means), int(turn)), {})[rank] = numbers


def check(plan: Plan, outcomes: list[Outcome[Told]]) -> dict[int, Told]:
    """The laws; returns what those tell that came to the end, by rank."""
    dead = {fault.rank for fault in plan.faults if fault.fired}
    came_late = {one.rank for one in outcomes if isinstance(one.error, Stopped) and one.error.code == 0}
    found = {one.rank: one.result for one in outcomes if one.result is not None}
    if not found and dead >= set(range(plan.size)):
        return {}  # all had died before anybody could join them
    for one in outcomes:
        assert one.is_crashed == (one.rank in dead)
        assert one.rank in dead | came_late or one.error is None, one.error
    assert came_late <= set(plan.joins)
    first = next(iter(found.values()))
    for measures in found.values():
        assert all(torch.equal(a, b) for a, b in zip(measures.tensors, first.tensors, strict=True))
        assert measures.pending == 0
        if plan.strategy == "quorum":
            assert measures.ledger.produced == measures.ledger.taken + measures.ledger.expired == measures.steps
        for epoch, ranks in measures.evaluations.items():
            assert all(other.evaluations.get(epoch, ranks) == ranks for other in found.values())
            assert set(ranks) >= {rank for rank, other in found.items() if epoch in other.evaluations}
    if plan.share == "dynamic":
        computed = Counter((epoch, number) for epoch, number, _ in plan.given)
        assert not dead or max(computed.values()) == 1
        if not dead:
            assert computed == Counter({(epoch, n): 1 for epoch in range(plan.epochs) for n in range(EXAMPLES)})
    return found


def planned(seed: int) -> Plan:
    draw = random.Random(seed)
    size, joiners = draw.choice([1, 2, 3, 5]), draw.choice([1, 1, 2, 3])
    ranks = range(size + joiners)
    pace = {rank: draw.choice([0.002, 0.01, 0.01, 0.05]) for rank in ranks}
    victims = draw.sample(ranks, draw.choice([0, 0, 1, 1, 2, size]))
    return Plan(
        size=size,
        joins={size + one: draw.uniform(0.0, draw.choice([0.1, 0.6, 1.5])) for one in range(joiners)},
        deaths={rank: draw.randint(1, draw.choice([20, 80, 200])) for rank in victims},
        seed=seed,
        evaluates=draw.random() < 0.7,
        share=draw.choice(["dynamic", "dynamic", "dynamic", "static"]),
        width=draw.choice([4, 4, 4000]),
        pace=lambda rank: pace[rank],
        network=Network(latency=draw.choice([0.0, 1e-4, 5e-3]), bandwidth=draw.choice([1e7, 1e9])),
        settings={
            "wait_for": draw.choice(["all", "majority", "designated", 1, 0.6]),
            "max_staleness": draw.choice([1, 3, 16]),
        },
    )


@pytest.mark.seeds(4, 8)
def test_they_join_at_any_time_while_others_die(seed: int) -> None:
    plan = planned(seed)
    check(plan, plan.run())


IN_SUMS: dict[str, dict[str, Any]] = {
    "all-reduce": {"on_death": "continue"},
    "symmetric-easgd": {"sync_every": 2, "on_death": "continue"},
    "local-sgd": {"sync_every": 3},
    "post-local-sgd": {"sync_every": 2, "after": 4},
    "slowmo": {"sync_every": 2, "slow_every": 2},
    "diloco": {"sync_every": 4, "fragments": 2},
    "eager-averaging": {"sync_every": 2},
    "decoupled-diloco": {"sync_every": 2, "fragments": 2, "overlap": 0},
    "async-local-sgd": {"sync_every": 2},
    "hierarchical-local-sgd": {"sync_every": 1, "across_every": 3, "group_size": 2},
    "group-averaging": {"sync_every": 3, "group_size": 2},
    "hogwild": {},
}


@pytest.mark.seeds(1, 6)
@pytest.mark.parametrize("strategy", IN_SUMS)
def test_they_join_where_sums_are_formed(seed: int, strategy: str) -> None:
    plan = planned(seed)
    plan.strategy, plan.settings, plan.width = strategy, IN_SUMS[strategy], 4
    check(plan, plan.run())


ON_SERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sync": ("parameter-server", {}),
    "bounded": ("parameter-server", {"mode": "bounded", "max_staleness": 1, "overlap": True}),
    "async": ("parameter-server", {"mode": "async"}),
    "in order": ("parameter-server", {"mode": "async", "in_order": True}),
    "by gap": ("parameter-server", {"mode": "async", "staleness_scaling": "gap", "momentum": "worker"}),
    "coded": ("parameter-server", {"compress": "blocks", "bits": 8, "dense_below": 0, "pulls": "coded"}),
    "elastic": ("easgd", {"sync_every": 2}),
}


@pytest.mark.seeds(1, 8)
@pytest.mark.parametrize("case", ON_SERVERS)
def test_they_join_where_parameters_are_on_servers(seed: int, case: str) -> None:
    """Each part is on all workers of the start, one of which stays."""
    plan = planned(seed)
    plan.strategy, settings = ON_SERVERS[case]
    plan.settings, plan.width = {**settings, "on_death": "continue", "replication": plan.size}, 4
    stays = random.Random(seed).randrange(plan.size)
    plan.deaths = {rank: calls for rank, calls in plan.deaths.items() if rank != stays}
    check(plan, plan.run())


@pytest.mark.parametrize("strategy", ["hierarchical-local-sgd", "group-averaging"])
def test_who_joins_is_one_of_a_group(strategy: str) -> None:
    plan = Plan(size=3, joins={3: 0.05}, strategy=strategy, settings=IN_SUMS[strategy])
    found = check(plan, plan.run())
    assert found[3].began == 0
    groups = [stood for (_, turn), stood in plan.stood.items() if turn and {2, 3} <= stood.keys()]
    met = [[rank for rank, numbers in stood.items() if numbers == stood[3] and rank != 3] for stood in groups]
    if strategy == "group-averaging":  # one digit of the rank differs, the last one or the one before
        assert {rank for ranks in met for rank in ranks} == {1, 2}
    else:
        assert len(met) > 5 and all(ranks == [2] for ranks in met)


def test_one_more_gets_the_replica_and_its_share_of_the_data() -> None:
    plan = Plan(size=2, joins={2: 0.1})
    found = check(plan, plan.run())
    assert found[2].began == 0
    assert found[2].evaluations == {epoch: [0, 1, 2] for epoch in range(EPOCHS)}
    by_rank = Counter(rank for _, _, rank in plan.given)
    assert min(by_rank.values()) > EXAMPLES * EPOCHS / 3 / 2
    assert found[2].ledger.taken == found[2].steps


def test_one_that_comes_between_two_evaluations_is_in_the_next_one() -> None:
    plan = Plan(size=3, joins={3: 0.2})
    found = check(plan, plan.run())
    assert found[3].began == 1 and found[3].steps > 5
    assert found[0].evaluations == {0: [0, 1, 2], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3]}


SLOW_LINKS = {
    "quick": Network(latency=1e-4, bandwidth=1e9),
    "far": Network(latency=0.02, bandwidth=1e9),
    "narrow": Network(latency=1e-4, bandwidth=1.2e6),
}


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd", "hogwild", "parameter-server"])
@pytest.mark.parametrize("moment", range(2))
def test_where_sums_are_formed_nobody_is_let_in_while_some_wait(strategy: str, moment: int) -> None:
    settings = IN_SUMS.get(strategy, {"mode": "async", "on_death": "continue"})
    plan = Plan(size=3, joins={3: 0.35 + 0.1 * moment}, strategy=strategy, settings=settings)
    plan.pace = lambda rank: 0.4 if rank == 1 else 0.002
    found = check(plan, plan.run())
    for epoch, ranks in found[0].evaluations.items():
        assert ranks == ([0, 1, 2, 3] if 3 in found and epoch >= found[3].began else [0, 1, 2])


def test_who_is_asked_for_its_model_before_it_has_one_answers_when_it_has() -> None:
    plan = Plan(size=3, joins={3: 0.05}, network=SLOW_LINKS["narrow"], width=4000, strategy="group-averaging")
    plan.settings = {"sync_every": 4, "group_size": 4}
    found = check(plan, plan.run())
    assert found[3].steps > 5


@pytest.mark.parametrize("links", SLOW_LINKS)
@pytest.mark.parametrize("moment", range(2))
def test_while_some_wait_for_an_evaluation_one_comes_before_or_after_it(links: str, moment: int) -> None:
    """Rank 1 makes its steps, of an epoch, while the others have settled."""
    plan = Plan(size=3, joins={3: 0.06 + 0.05 * moment}, network=SLOW_LINKS[links], settings={"wait_for": 1})
    plan.pace = lambda rank: 0.08 if rank == 1 else 0.002
    plan.width = 4000 if links == "narrow" else 4
    found = check(plan, plan.run())
    for epoch, ranks in found[0].evaluations.items():
        assert ranks == ([0, 1, 2, 3] if 3 in found and epoch >= found[3].began else [0, 1, 2])


def test_all_that_began_may_die_when_others_have_joined() -> None:
    plan = Plan(size=2, joins={2: 0.02, 3: 0.03}, deaths={0: 60, 1: 70})
    found = check(plan, plan.run())
    assert set(found) == {2, 3}
    assert found[2].evaluations[EPOCHS - 1] == [2, 3]


@pytest.mark.parametrize("call", range(56, 66, 3))
def test_who_joins_is_let_in_by_the_next_leader_where_the_first_one_dies(call: int) -> None:
    plan = Plan(size=3, joins={3: 0.05}, deaths={0: call}, epochs=10)
    assert 3 in check(plan, plan.run())


def test_one_that_comes_too_late_ends_well() -> None:
    plan = Plan(size=2, joins={2: 30.0})
    outcomes = plan.run()
    assert isinstance(outcomes[2].error, Stopped) and outcomes[2].error.code == 0
    assert set(check(plan, outcomes)) == {0, 1}


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("all-reduce", {}),
        ("diloco", {"overlap": 2}),
        ("hierarchical-local-sgd", {"on_death": "stop"}),
        ("quorum", {"on_death": "stop"}),
        ("d-psgd", {}),
        ("hogwild", {"on_death": "stop"}),
    ],
)
def test_others_than_rounds_that_go_on_are_refused(strategy: str, settings: dict[str, Any]) -> None:
    scene = Scene(strategy, 1, world={"joiners": 1, "timeout": 20.0}, **settings)
    outcomes = scene.but(settings=settings, steps=0).outcomes()
    assert isinstance(outcomes[1].error, ConfigurationError)
    assert "workers join where the others go on" in str(outcomes[1].error)
    assert outcomes[0].error is None


@pytest.mark.parametrize("strategy", ["d-psgd", "sgp", "ad-psgd"])
@pytest.mark.parametrize("call", [60, 90, 120])
def test_one_that_was_refused_is_not_counted_among_the_dead_of_a_graph(strategy: str, call: int) -> None:
    plan = Plan(size=4, joins={4: 0.05}, deaths={1: call}, strategy=strategy, epochs=6)
    outcomes = plan.run()
    assert isinstance(outcomes[4].error, ConfigurationError)
    assert outcomes[1].is_crashed
    left = [outcomes[rank] for rank in (0, 2, 3)]
    assert [one.error for one in left] == [None] * 3
    ends = [torch.cat([x.reshape(-1) for x in one.result.tensors]) for one in left if one.result is not None]
    assert len(ends) == 3 and all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize("strategy", ["quorum", "local-sgd", "hogwild"])
def test_another_model_is_refused_and_the_others_go_on(strategy: str) -> None:
    model = lambda: torch.nn.Linear(2, 1, bias=torch.initial_seed() < 2)  # noqa: E731
    fields: Any = {"model": model, "seed": "rank", "loss": ones, "steps": 100, "pause": 0.01}
    outcomes = Scene(strategy, 2, world={"joiners": 1, "timeout": 20.0}, **fields).outcomes()
    assert isinstance(outcomes[2].error, ConfigurationError) and "a different model" in str(outcomes[2].error)
    assert [one.error for one in outcomes[:2]] == [None, None]
