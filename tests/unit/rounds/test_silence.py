"""Workers whose process stands still, task and all: the others go on, and it ends with the same bits."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError
from quorate.core.fields import Fields
from quorate.rounds.gathering import Patience
from quorate.rounds.progress import RoundTask
from quorate.rounds.terms import Agreed
from quorate.train import begin_rounds
from quorate.train.loop import loops_of
from quorate.wire import current
from quorate.wire.virtual.network import Network
from tests.support.scene import Scene, Trainer
from tests.unit.rounds.test_laws import applied, speeds, training


@pytest.fixture(autouse=True)
def can_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    let_stand_still(monkeypatch)


def let_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress tasks understand a message that lets them sleep."""
    take = RoundTask._take

    def sleeping(self: RoundTask, source: int, message: Message) -> None:
        if "sleep" in message.header:
            self._wire.clock.sleep(message.header["sleep"])
        else:
            take(self, source, message)

    monkeypatch.setattr(RoundTask, "_take", sleeping)


def test_a_leader_of_many_workers_is_asked_later() -> None:
    """It answers all of them one after the other."""
    patience = {size: Patience(Agreed(size=size)).seconds for size in (2, 16, 64, 4000)}
    assert patience == {2: 0.05, 16: 0.05, 64: 0.2, 4000: 10.0}


def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin_rounds, "Agreed", partial(Agreed, log_bytes=0))


@dataclass(frozen=True)
class Sleep(Fields):
    sleep: float


def stand_still(seconds: float) -> None:
    """The task beside this worker's training thread sleeps."""
    (mine,) = loops_of(current.here())
    mine.worker.rounds.rounds._progress.say(Sleep(seconds))


def trained(size: int, stuck: dict[tuple[int, int], float], pauses: Any, **choice: Any) -> list[Trainer]:
    """As `training`; where `stuck` says so, a worker and its task stand still before a step."""

    def pause(rank: int, step: int) -> float:
        seconds = stuck.get((rank, step), 0.0)
        if seconds:
            stand_still(seconds)
        return max(seconds, float(pauses(rank, step)))

    return training(size, pause=pause, **choice)


KEPT = [1010, 1061, 1110, 1179, 1256, 1573, 1657, 2026, 2991]
"""Seeds that once ended in a worker waiting for ever."""


def ends_well(found: list[Trainer], bound: int = 16) -> None:
    newest = max((one.number for measures in found for one in measures.rounds), default=0)
    whole = [measures for measures in found if [one.number for one in measures.rounds] == list(range(1, newest + 1))]
    if newest and whole:  # it was never copied onto, so what it has applied is what counts
        measures = max(whole, key=lambda measures: [one.term for one in measures.rounds])
        given = [pair for one in measures.rounds for pairs in one.contributors.values() for pair in pairs]
        assert max((staleness for staleness, _ in given), default=0) <= bound
        assert sum(count for _, count in given) == sum(each.ledger.taken for each in found)
    for measures in found:
        assert torch.equal(measures.parameters, found[0].parameters)
        ledger = measures.ledger
        assert ledger.produced == ledger.taken + ledger.dropped + ledger.replaced + ledger.expired
        assert measures.pending == 0


@pytest.mark.parametrize("who", [0, 2], ids=["the one that leads", "another one"])
@pytest.mark.parametrize("logs", ["long", "short"])
def test_the_others_go_on_without_it(who: int, logs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if logs == "short":
        small_logs(monkeypatch)
    stuck = {(who, 5): 3.0}
    bound = 64 if logs == "long" else 16  # twice as many results are kept
    found = trained(4, stuck, lambda rank, step: 0.02, steps=60, wait_for=2, max_staleness=bound)
    ends_well(found, bound)
    others = [measures for rank, measures in enumerate(found) if rank != who]
    assert max(max(measures.lengths) for measures in others) < 0.25
    assert sum(seconds > 2.9 for seconds in found[who].lengths) == 1
    if logs == "long":
        assert applied(found[who]) == applied(others[0])
    else:
        assert len({one.number for one in others[0].rounds} - {one.number for one in found[who].rounds}) > 20


@pytest.mark.seeds(6, 40, also=KEPT)
def test_random_silences(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    if seed % 2:
        small_logs(monkeypatch)
    size = draw.choice([2, 3, 5])
    places = [(rank, step) for rank in range(size) for step in range(12)]
    stuck = {place: draw.choice([0.06, 0.3, 2.0]) for place in draw.sample(places, draw.randint(1, 4))}
    network = Network(latency=draw.choice([1e-5, 1e-3]), bandwidth=1e9)
    settings = {"wait_for": draw.choice([1, 2, "majority", "all"]), "max_staleness": draw.choice([1, 4, 16])}
    pauses = speeds(draw, size)
    found = trained(size, stuck, pauses, steps=12, seed=seed, network=network, **settings)
    ends_well(found, settings["max_staleness"])


@pytest.mark.seeds(5, 16)
def test_random_silences_while_large_gradients_are_carried(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    if seed % 2:
        small_logs(monkeypatch)
    size = draw.choice([2, 3, 5])
    places = [(rank, step) for rank in range(size) for step in range(10)]
    stuck = {place: draw.choice([0.06, 0.3, 2.0]) for place in draw.sample(places, draw.randint(1, 4))}
    network = Network(latency=draw.choice([1e-5, 1e-3]), bandwidth=draw.choice([3e5, 3e6, 1e8]))
    settings = {"wait_for": draw.choice([1, 2, "majority", "all"]), "max_staleness": draw.choice([1, 4, 16])}
    found = trained_wide(size, stuck, steps=10, seed=seed, network=network, **settings)
    ends_well(found, settings["max_staleness"])


@pytest.mark.parametrize("who", [0, 2], ids=["the one that leads", "another one"])
@pytest.mark.parametrize("logs", ["long", "short"])
def test_one_that_evaluates_alone_is_waited_for_by_nobody(who: int, logs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if logs == "short":
        small_logs(monkeypatch)

    def evaluate(trainer: Trainer) -> None:
        if (trainer.rank, trainer.step) == (who, 5):
            rounds = trainer.worker._rounds.rounds
            before = rounds.version
            with trainer.world.evaluate(this_worker_only=True):
                trainer.clock.sleep(0.5)
                assert rounds.version == before
            assert rounds.version > before + 20

    steps = [50 if rank != who else 10 for rank in range(3)]
    found = training(3, steps=steps, before=evaluate, wait_for="all", max_staleness=2)
    ends_well(found)
    assert max(max(measures.lengths) for measures in found if measures.rank != who) < 0.1


def test_nobody_evaluates_alone_where_all_wait() -> None:
    def evaluate(trainer: Trainer) -> None:
        with trainer.world.evaluate(this_worker_only=True):
            pass

    with pytest.raises(ConfigurationError, match="needs a strategy that does not wait for every worker"):
        Scene(size=2).act(evaluate)


def wide() -> torch.nn.Module:
    """Gradients of 80 kB."""
    model = torch.nn.Linear(20_000, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(0.0)
    return model


def trained_wide(size: int, stuck: dict[tuple[int, int], float], **choice: Any) -> list[Trainer]:
    make = partial(torch.optim.SGD, lr=1e-5)
    return trained(size, stuck, lambda rank, step: 0.01, make=make, model=wide, **choice)


@pytest.mark.parametrize("bandwidth", [2e5, 1e6, 1e8])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_carrying_large_gradients_over_slow_links_is_not_silence(size: int, bandwidth: float) -> None:
    network = Network(latency=1e-3, bandwidth=bandwidth)
    found = trained_wide(size, {}, steps=12, wait_for="all", network=network)
    ends_well(found)
    for measures in found:
        formed = [one for one in measures.rounds if not one.is_pause]
        assert len(formed) == 12
        assert all(one.contributors.keys() == set(range(size)) for one in formed)
        assert {one.term for one in formed} == {0}


@pytest.mark.parametrize("who", [0, 2], ids=["the one that leads", "another one"])
@pytest.mark.parametrize("bandwidth", [1e7, 1e9])
def test_one_that_stands_still_is_left_out_as_soon_where_gradients_are_large(who: int, bandwidth: float) -> None:
    network = Network(latency=1e-4, bandwidth=bandwidth)
    found = trained_wide(4, {(who, 12): 4.0}, steps=40, wait_for=2, network=network)
    ends_well(found)
    others = [measures for rank, measures in enumerate(found) if rank != who]
    carried = 8 * 80_000 / bandwidth  # both ways, for all
    assert max(max(measures.lengths[2:]) for measures in others) < 0.25 + 8 * carried


@pytest.mark.parametrize("call", ["barrier", "mean", "gather"])
def test_those_that_wait_in_a_call_of_the_world_give_copies(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stands still for longer than results are kept, while all others are through and wait for it."""
    small_logs(monkeypatch)

    given = {"barrier": (), "mean": (1.0,), "gather": (1,)}[call]
    last = lambda trainer: getattr(trainer.world, call)(*given)  # noqa: E731
    ends_well(trained(4, {(1, 6): 1.0}, lambda rank, step: 0.01, steps=12, wait_for=2, last=last))


def test_a_slow_worker_comes_to_a_barrier_where_the_others_wait() -> None:
    """Its last rounds need no contributions of those that are there already."""

    pauses = lambda rank, step: 0.1 if rank == 2 else 0.01  # noqa: E731
    ends_well(training(4, steps=10, pause=pauses, last=lambda trainer: trainer.world.barrier(), wait_for=3))


@pytest.mark.parametrize("who", [0, 2], ids=["the one that leads", "another one"])
@pytest.mark.parametrize(
    "settings",
    [{"wait_for": "all"}, {"wait_for": 1, "max_staleness": 0}, {"wait_for": "designated"}],
    ids=["its call", "its gradient, at the bound", "its draw"],
)
def test_one_that_a_round_waits_for_is_found_to_stand_still(who: int, settings: dict[str, Any]) -> None:
    """No round starts meanwhile, so nobody asks it for its gradient."""
    found = trained(3, {(who, 6): 4.0}, lambda rank, step: 0.02, steps=30, **settings)
    ends_well(found, settings.get("max_staleness", 16))
    others = [measures for rank, measures in enumerate(found) if rank != who]
    assert max(max(measures.lengths) for measures in others) < 0.4
