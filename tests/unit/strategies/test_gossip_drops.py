"""Push-sum where messages are lost or late: every mass is held, under way, or known to be lost."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.gossip.exchanges import MassLedger, weight_of_the_dead
from tests.support.faulty import Fault
from tests.support.gossip import Told, assert_nothing_is_lost, run, speeds, train
from tests.support.scene import Scene, Trainer, ones

GRAPHS = ["one-peer-exponential", "exponential", "ring", "random-matching"]


def drops(draw: random.Random, size: int, count: int) -> list[Fault]:
    return [Fault("drop", rank=draw.randrange(size), at=draw.randint(2, 9), operation="send") for _ in range(count)]


@pytest.mark.parametrize("name", ["sgp", "osgp"])
@pytest.mark.seeds(2, 6)
def test_masses_held_and_lost_add_up_to_the_number_of_workers(name: str, seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5, 8])
    faults = drops(draw, size, draw.choice([1, 3]))
    graph, pauses = draw.choice(GRAPHS[:3]), speeds(draw, size)
    found = run(
        size,
        lambda w: train(w, 12, pauses=pauses, evaluates=(11,), strategy=name, topology=graph, patience=1.0),
        seed=seed,
        faults=faults,
    )
    assert all(fault.fired for fault in faults)
    masses, lost = [told.masses[0] for told in found], [told.lost for told in found]
    assert sum(lost) > 0.01
    assert sum(masses) + sum(lost) == pytest.approx(size, abs=1e-9)
    mean = sum(m * told.given[0] for m, told in zip(masses, found, strict=True)) / sum(masses)
    for told in found:
        assert torch.allclose(told.means[0], mean, atol=1e-5)
        assert torch.equal(told.end, found[0].end)
        assert bool(torch.isfinite(told.end).all())


def test_what_was_lost_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    lose = Fault("drop", rank=1, at=2, operation="send")
    found = run(2, lambda w: train(w, 6, strategy="sgp", patience=1.0), faults=[lose])
    assert found[0].lost == pytest.approx(0.5)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "quorate: of what rank 1 gave to rank 0, a weight of 0.5 was lost on the way; the mean is over what remains"
    ]


@pytest.mark.parametrize("graph", GRAPHS)
def test_an_exchange_that_was_skipped_blocks_no_later_one(graph: str) -> None:
    """Rank 1 loses one share; every later round still pairs the same workers, as messages carry their round."""
    ends: dict[int, float] = {}

    def timed(world: Any) -> Told:
        told = train(world, 20, strategy="sgp", topology=graph, patience=1.0)
        ends[world.rank] = world.wire.clock.now()
        return told

    found = run(4, timed, faults=[Fault("drop", rank=1, at=3, operation="send")], timeout=5.0)
    assert all(told.rounds == list(range(20)) for told in found)
    assert max(ends.values()) < 4.0, "who waited in vain did so once, and the others caught up"


def test_without_patience_a_lost_share_ends_the_run_with_a_name() -> None:
    with pytest.raises(WireTimeout, match="waited 5 s for rank"):
        run(
            4,
            lambda w: train(w, 20, strategy="sgp", topology="random-matching"),
            faults=[Fault("drop", rank=1, at=3, operation="send")],
            timeout=5.0,
        )


@pytest.mark.parametrize("name", ["sgp", "osgp"])
@pytest.mark.parametrize("graph", ["one-peer-exponential", "ring"])
def test_who_is_silent_is_not_waited_for_and_counts_when_it_comes(name: str, graph: str) -> None:
    """Rank 2 sleeps, and once more after it has woken up; nothing of it is lost."""
    ends: dict[int, float] = {}

    def timed(world: Any) -> Told:
        begin = world.wire.clock.now()

        def pauses(rank: int, step: int) -> float:
            ends[rank] = world.wire.clock.now() - begin
            return 5.0 if rank == 2 and step in (3, 6) else 0.4

        return train(world, 14, pauses=pauses, strategy=name, topology=graph, patience=1.0)

    found = run(4, timed)
    assert_nothing_is_lost(found)
    assert all(told.lost == 0.0 for told in found)
    assert all(ends[rank] < 10.0 for rank in (0, 1, 3)), "they waited for no longer than their patience"
    assert ends[2] > 14.0


def test_survivors_know_what_was_lost_with_the_dead() -> None:
    """Rank 2 dies before a step: what it held, and what was under way to it, by the books of the others alone."""
    size = 3
    held: list[float] = []
    got: list[dict[int, float]] = []
    books: dict[int, MassLedger] = {}

    def after(trainer: Trainer) -> None:
        books[trainer.rank] = trainer.worker.neighbours.ledger
        if (trainer.rank, trainer.step) == (2, 7):
            held.append(trainer.worker.state.u)
            got.append(dict(books[2].received))

    fields: Any = {"loss": ones, "steps": 30, "dies": {2: 7}, "pause": lambda rank, step: 0.01 * rank, "after": after}
    outcomes = Scene("sgp", size, topology="star", on_death="stop", **fields).outcomes()
    assert [outcome.is_crashed for outcome in outcomes] == [False, False, True]
    survivors = {rank: books[rank] for rank in (0, 1)}
    under_way = sum(book.sent[2] - got[0].get(rank, 0.0) for rank, book in survivors.items())
    assert under_way > 0.1
    lost = weight_of_the_dead([2], dict.fromkeys(range(size), 1.0), [book.balances() for book in survivors.values()])
    assert lost == pytest.approx(held[0] + under_way, abs=1e-12)


@pytest.mark.parametrize("patience", [0.0, -1.0, math.nan])
def test_a_patience_that_cannot_be(patience: float) -> None:
    with pytest.raises(ConfigurationError, match="seconds above 0"):
        run(2, lambda w: train(w, 1, strategy="sgp", patience=patience))
