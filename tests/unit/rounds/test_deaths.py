"""Workers that die at any point of a training in rounds: the others go on, equal, and nothing else is lost."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from quorate.core.errors import PeerFailed
from quorate.wire.virtual.network import Network
from tests.support.scene import Scene, Trainer, flat, parameters, ranked, squares, zeros
from tests.unit.rounds.test_laws import adam, net, sgd, speeds

STEPS = 9


def see_ranks(trainer: Trainer) -> None:
    trainer.seen.append(trainer.world.gather(trainer.rank))


def see_mean(trainer: Trainer) -> None:
    trainer.seen.append(trainer.world.mean(torch.ones(2), weight=2.0).tolist())


def training(size: int, deaths: dict[int, int], *, strategy: str = "quorum", seed: int = 0, **choice: Any) -> Scene:
    """Workers of which some die: by rank, after how many calls to their wires, counted from the first step."""
    fields = {"model": net, "make": sgd, "loss": squares, "steps": STEPS, "pause": 0.01, **choice}
    world = {"seed": seed, "network": fields.pop("network", None), "timeout": 60.0}
    return Scene(strategy, size, deaths=deaths, rest=see_ranks, last=see_mean, world=world, **fields)


def numbers_of(trainer: Trainer) -> torch.Tensor:
    """What is equal in the end, and what is equal though nothing makes it so then."""
    common = getattr(trainer.worker.state, "common", None)
    return trainer.parameters if common is None else torch.cat([trainer.parameters, flat(common.segments())])


def check(scene: Scene) -> list[Trainer]:
    """The laws; returns the survivors."""
    found = scene.survivors()
    first = next(iter(found.values()))
    by_number: dict[int, Any] = {}
    for rank, measures in found.items():
        assert torch.equal(numbers_of(measures), numbers_of(first))
        assert measures.seen[-1] == [1.0, 1.0]
        assert measures.seen == first.seen
        if scene.strategy != "quorum":
            continue
        ledger = measures.ledger
        assert measures.pending == 0
        assert ledger.produced == ledger.taken + ledger.expired == STEPS
        assert ledger.expired == 0 or scene.settings["max_staleness"] == 0
        for one in measures.rounds:
            header = one.term, one.weight, one.live, sorted(one.contributors.items())
            assert by_number.setdefault(one.number, header) == header
        numbers = [one.number for one in measures.rounds]
        assert numbers == sorted(set(numbers))
        taken = sum(n for one in measures.rounds for _, n in one.contributors.get(rank, ()))
        assert taken == ledger.taken or numbers != list(range(1, len(numbers) + 1))
    return list(found.values())


def planned(seed: int) -> Scene:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5, 8])
    victims = draw.sample(range(size), draw.choice([1, 1, 2, size - 1]) if size > 2 else 1)
    return training(
        size,
        {rank: draw.randint(1, draw.choice([8, 40, 110])) for rank in victims},
        seed=seed,
        rests=tuple(step for step in (3, 6) if draw.random() < 0.4),
        pause=speeds(draw, size),
        make=draw.choice([sgd, adam]),
        network=Network(latency=draw.choice([0.0, 1e-4, 5e-3]), bandwidth=draw.choice([1e6, 1e9])),
        wait_for=draw.choice(["all", "majority", "designated", 1, 2, 0.6]),
        max_staleness=draw.choice([0, 1, 3, 16]),
    )


@pytest.mark.seeds(6, 16)
def test_random_deaths(seed: int) -> None:
    check(planned(seed))


@pytest.mark.seeds(4, 8)
def test_random_deaths_in_step(seed: int) -> None:
    """The same where every step is a sum of all that are left."""
    plan = planned(seed)
    plan.strategy, plan.settings = "all-reduce", {"on_death": "continue"}
    check(plan)


@pytest.mark.seeds(2, 4)
def test_random_deaths_in_closures(seed: int) -> None:
    """The same where the step asks for the loss, which is the mean of all that are left."""
    plan = planned(seed)
    plan.strategy, plan.settings, plan.closure = "all-reduce", {"on_death": "continue"}, True
    check(plan)


@pytest.mark.seeds(2, 4)
@pytest.mark.parametrize("strategy", ["local-sgd", "slowmo", "diloco", "post-local-sgd"])
def test_random_deaths_between_means(seed: int, strategy: str) -> None:
    plan = planned(seed)
    plan.deaths = {rank: max(1, count // 4) for rank, count in plan.deaths.items()}
    plan.strategy, plan.settings = strategy, {"sync_every": random.Random(seed).choice([1, 2, 4])}
    check(plan)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("strategy", ["quorum", "all-reduce"])
def test_those_plans_strike_and_the_rest_is_soon_at_work(victim: int, strategy: str) -> None:
    settings = {"on_death": "continue"} if strategy == "all-reduce" else {"wait_for": "all"}
    plan = training(3, {victim: 10}, strategy=strategy, **settings)
    found = check(plan)
    assert plan.faults[victim].fired == 1
    assert all(measures.wire.dead == {victim} for measures in found)
    for measures in found:
        halt = max(late - early for early, late in itertools.pairwise(measures.times))
        assert halt < 0.1, "until it is noticed, 0.05 s pass"


def test_without_it_a_death_is_the_end_of_all() -> None:
    plan = training(3, {1: 30}, on_death="stop")
    outcomes = plan.outcomes()
    assert plan.faults[1].fired == 1
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
