"""The laws of rounds, among virtual workers, under random speeds, networks, settings and ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quorate
from quorate.wire.virtual.network import Network
from tests.support.scene import Scene, Trainer, squares

SIZES = [1, 2, 3, 5, 8]


def net() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw))
    return model


def training(
    size: int, *, strategy: str = "quorum", seed: int = 0, network: Network | None = None, **choice: Any
) -> list[Trainer]:
    """Workers on `net`, which sleep in evaluations."""
    fields = {"model": net, "make": sgd, "loss": squares, "rest": lambda trainer: trainer.clock.sleep(0.05), **choice}
    return Scene(strategy, size, world={"seed": seed, "network": network}, **fields).run()


def applied(trainer: Trainer) -> list[tuple[Any, ...]]:
    """The rounds that it has applied, as far as they are to be the same on all workers."""
    return [(one.number, one.term, one.weight, tuple(one.contributors)) for one in trainer.rounds]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def speeds(draw: random.Random, size: int) -> Callable[[int, int], float]:
    """Some worker may be always slow; any may be late at times."""
    base = [draw.choice([0.0, 0.0, 0.01, 0.05]) for _ in range(size)]
    at_times = draw.choice([0.0, 0.1, 0.5])
    table = {
        (r, s): base[r] + (draw.random() < at_times) * draw.uniform(0, 0.2) for r in range(size) for s in range(40)
    }
    return lambda rank, step: table[rank, step]


def check(found: list[Trainer], *, bound: int, quorum: int, late: str) -> None:
    first = found[0]
    for measures in found:
        assert torch.equal(measures.parameters, first.parameters)
        assert applied(measures) == applied(first)
        assert [one.number for one in measures.rounds] == list(range(1, len(measures.rounds) + 1))
        ledger = measures.ledger
        gone = ledger.dropped + ledger.replaced + ledger.expired
        assert ledger.produced == ledger.taken + gone
        assert measures.pending == 0
        assert gone == ledger.expired == 0 or late != "carry"
    for one in first.rounds:
        stalenesses = [s for given in one.contributors.values() for s, _ in given]
        assert max(stalenesses, default=0) <= bound
        fresh = [rank for rank, given in one.contributors.items() if any(s == 0 for s, _ in given)]
        if not one.is_pause:
            assert len(fresh) >= min(quorum, 1)
    taken = sum(n for one in first.rounds for given in one.contributors.values() for _, n in given)
    assert taken == sum(measures.ledger.taken for measures in found)


@pytest.mark.seeds(20, 80)
def test_random_schedules(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice(SIZES)
    wait_for: Any = draw.choice(["all", "majority", "designated", 1, min(2, size), 0.6])
    late = draw.choice(["carry", "carry", "drop", "replace"])
    bound = draw.choice([0, 1, 3, 16])
    steps = [draw.randint(3, 9) for _ in range(size)] if draw.random() < 0.5 else [6] * size
    evaluates = (2,) if draw.random() < 0.3 else ()
    pauses, make = speeds(draw, size), draw.choice([sgd, adam])
    network = Network(latency=draw.choice([0.0, 1e-4, 5e-3]), bandwidth=draw.choice([1e6, 1e9]))
    overlap = bound > 0 and draw.random() < 0.2
    settings = {"wait_for": wait_for, "late": late, "max_staleness": bound, "overlap": overlap, "divide_by": "world"}
    fields: Any = {"steps": steps, "make": make, "pause": pauses, "rests": evaluates, "late_weight": "full"}
    found = training(size, seed=seed, network=network, **fields, **settings)
    check(found, bound=bound, quorum=0 if overlap else 1, late=late)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [sgd, adam])
def test_waiting_for_all_is_all_reduce_bit_for_bit(size: int, make: Any) -> None:
    pauses = speeds(random.Random(size), size)
    ours = training(size, steps=7, make=make, pause=pauses, wait_for="all")
    other = training(size, steps=7, make=make, pause=pauses, strategy="all-reduce")
    for mine, theirs in zip(ours, other, strict=True):
        assert torch.equal(mine.parameters, theirs.parameters)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_round_has_as_many_fresh_gradients_as_were_waited_for(count: int) -> None:
    pauses = speeds(random.Random(count), 4)
    found = training(4, steps=12, pause=pauses, wait_for=count)
    for one in found[0].rounds[: -(4 - count) * 4 - 1]:
        fresh = [rank for rank, given in one.contributors.items() if (0, 1) in given]
        assert len(fresh) >= count


def test_the_fast_do_not_wait_for_the_slow() -> None:
    found = training(4, steps=10, pause=lambda rank, step: 0.5 * (rank == 3), wait_for=2)
    assert max(max(measures.lengths) for measures in found[:3]) < 0.05


def test_a_bound_of_none_waits_for_the_slow_one_that_computes() -> None:
    found = training(2, steps=8, pause=lambda rank, step: 0.5 * rank, wait_for=1, max_staleness=2)
    ages = [s for one in found[0].rounds for given in one.contributors.values() for s, _ in given]
    assert max(ages) == 2
    assert max(found[0].lengths) > 0.4


@pytest.mark.parametrize("leaves", [0, 1])
def test_no_silence_when_the_fastest_leaves(leaves: int) -> None:
    """Rank `leaves` is far ahead and ends after 40 steps; the others go on at their own pace."""

    steps = [35 if rank == leaves else 12 for rank in range(3)]
    found = training(3, steps=steps, pause=lambda rank, step: 0.1 * (rank != leaves), wait_for=1)
    assert max(found[2].lengths) < 0.13
    check(found, bound=16, quorum=1, late="carry")


def test_settings_that_no_quorum_can_have() -> None:
    for settings, words in (
        ({"wait_for": 5}, "wait_for is 5, and there are 3 workers"),
        ({"wait_for": 0}, "wait_for is 0"),
        ({"wait_for": 1.5}, "wait_for is 1.5"),
        ({"max_staleness": -1}, "max_staleness is -1"),
        ({"grace": 0.0}, "grace is 0.0"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
    ):
        with pytest.raises(quorate.core.errors.ConfigurationError, match=words):
            training(3, **settings)
