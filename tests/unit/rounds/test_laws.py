"""The laws of rounds, among virtual workers, under random speeds, networks, settings and ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import quorate
from quorate.rounds.ledger import Ledger
from quorate.rounds.log import Round
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.pending import pending_weight

SIZES = [1, 2, 3, 5, 8]


@dataclass
class Told:
    """What one worker tells of its training."""

    parameters: torch.Tensor
    ledger: Ledger
    pending: float
    applied: list[tuple[Any, ...]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)


def net() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw))
    return model


def train(
    world: quorate.World,
    steps: int,
    *,
    make: Callable[[Any], torch.optim.Optimizer],
    pauses: Callable[[int, int], float] = lambda rank, step: 0.0,
    build: Callable[[], torch.nn.Module] = net,
    inputs: int = 3,
    evaluates: tuple[int, ...] = (),
    then: Callable[[], Any] = lambda: None,
    **settings: Any,
) -> Told:
    seen: list[Round] = []
    model = build()
    optimizer: Any = quorate.distribute(make(model), model, with_one_worker="algorithm", **settings)
    worker = optimizer.__dict__["_quorate_worker"]
    own = worker._rounds
    if own is not None:
        noted = own.watch.note_round

        def note(one: Round) -> None:
            seen.append(one)
            noted(one)

        own.watch.note_round = note
    draw = torch.Generator().manual_seed(100 + world.rank)
    clock, times = world.wire.clock, []
    for step in range(steps):
        if step in evaluates:
            with world.evaluate():
                clock.sleep(0.05)
        optimizer.zero_grad()
        begin = clock.now()
        clock.sleep(pauses(world.rank, step))
        model(torch.randn(4, inputs, generator=draw)).square().mean().backward()
        optimizer.step()
        times.append((begin, clock.now()))
    then()
    optimizer.finish()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    rounds = own.rounds if own is not None else None
    return Told(
        flat,
        rounds.ledger if rounds else Ledger(),
        pending_weight(rounds) if rounds else 0.0,
        [(one.number, one.term, one.weight, tuple(one.contributors)) for one in seen],
        seen,
        times,
    )


def run(size: int, task: Callable[[Any], Told], *, seed: int = 0, network: Network | None = None) -> list[Told]:
    return VirtualWorld(size, seed=seed, network=network, timeout=120.0).run(joined(task))


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def speeds(draw: random.Random, size: int) -> Callable[[int, int], float]:
    """Some worker may be always slow; any may be late at times."""
    base = [draw.choice([0.0, 0.0, 0.01, 0.05]) for _ in range(size)]
    at_times = draw.choice([0.0, 0.1, 0.5])
    table = {
        (r, s): base[r] + (draw.random() < at_times) * draw.uniform(0, 0.2) for r in range(size) for s in range(40)
    }
    return lambda rank, step: table[rank, step]


def check(found: list[Told], *, bound: int, quorum: int, late: str) -> None:
    first = found[0]
    for measures in found:
        assert torch.equal(measures.parameters, first.parameters)
        assert measures.applied == first.applied
        assert [one[0] for one in measures.applied] == list(range(1, len(measures.applied) + 1))
        ledger = measures.ledger
        gone = ledger.dropped + ledger.replaced + ledger.expired
        assert ledger.produced == ledger.taken + gone
        assert measures.pending == 0
        assert gone == ledger.expired == 0 or late != "carry"
    for one in first.rounds:
        stalenesses = [s for given in one.contributors.values() for s, _ in given]
        assert max(stalenesses, default=0) <= bound
        fresh = [rank for rank, given in one.contributors.items() if any(s == 0 for s, _ in given)]
        if not one.settles:
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
    found = run(
        size,
        lambda world: train(
            world,
            steps[world.rank],
            make=make,
            pauses=pauses,
            evaluates=evaluates,
            strategy="quorum",
            wait_for=wait_for,
            late=late,
            max_staleness=bound,
            overlap=overlap,
            divide_by=draw.choice(["world"]),
            late_weight="full",
        ),
        seed=seed,
        network=network,
    )
    check(found, bound=bound, quorum=0 if overlap else 1, late=late)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", [sgd, adam])
def test_waiting_for_all_is_all_reduce_bit_for_bit(size: int, make: Any) -> None:
    pauses = speeds(random.Random(size), size)
    ours = run(size, lambda w: train(w, 7, make=make, pauses=pauses, strategy="quorum", wait_for="all"))
    other = run(size, lambda w: train(w, 7, make=make, pauses=pauses, strategy="all-reduce"))
    for mine, theirs in zip(ours, other, strict=True):
        assert torch.equal(mine.parameters, theirs.parameters)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_round_has_as_many_fresh_gradients_as_were_waited_for(count: int) -> None:
    pauses = speeds(random.Random(count), 4)
    found = run(4, lambda w: train(w, 12, make=sgd, pauses=pauses, strategy="quorum", wait_for=count))
    for one in found[0].rounds[: -(4 - count) * 4 - 1]:
        fresh = [rank for rank, given in one.contributors.items() if (0, 1) in given]
        assert len(fresh) >= count


def test_the_fast_do_not_wait_for_the_slow() -> None:
    found = run(
        4, lambda w: train(w, 10, make=sgd, pauses=lambda r, s: 0.5 if r == 3 else 0.0, strategy="quorum", wait_for=2)
    )
    for measures in found[:3]:
        assert max(end - begin for begin, end in measures.steps) < 0.05


def test_a_bound_of_none_waits_for_the_slow_one_that_computes() -> None:
    def pauses(rank: int, step: int) -> float:
        return 0.5 if rank == 1 else 0.0

    found = run(2, lambda w: train(w, 8, make=sgd, pauses=pauses, strategy="quorum", wait_for=1, max_staleness=2))
    ages = [s for one in found[0].rounds for given in one.contributors.values() for s, _ in given]
    assert max(ages) == 2
    assert max(end - begin for begin, end in found[0].steps) > 0.4


@pytest.mark.parametrize("leaves", [0, 1])
def test_no_silence_when_the_fastest_leaves(leaves: int) -> None:
    """Rank `leaves` is far ahead and ends after 40 steps; the others go on at their own pace."""

    def pauses(rank: int, step: int) -> float:
        return 0.0 if rank == leaves else 0.1

    found = run(
        3,
        lambda w: train(w, 35 if w.rank == leaves else 12, make=sgd, pauses=pauses, strategy="quorum", wait_for=1),
    )
    slow = found[2 if leaves != 2 else 1]
    assert max(end - begin for begin, end in slow.steps) < 0.13
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
            run(3, lambda w, s=settings: train(w, 1, make=sgd, strategy="quorum", **s))  # type: ignore[misc]
