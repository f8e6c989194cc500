"""`batch="kept"` in rounds of all: a worker that stands still, process and all, loses its share and gets it back."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from quorate.wire import current
from tests.contract.test_kept_batch import Training, check
from tests.unit.rounds.test_silence import let_stand_still, small_logs, stand_still

Stands = dict[tuple[int, int], float]
"""Seconds in which the worker of a rank stands still, with its gradient of an update."""
STANDS: dict[str, Stands] = {
    "one": {(1, 3): 0.4},
    "two": {(0, 2): 0.3, (3, 4): 0.5},
    "the first, twice": {(0, 1): 0.2, (0, 5): 0.2},
}


@pytest.fixture(autouse=True)
def can_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    let_stand_still(monkeypatch)


def standing(stands: Stands) -> Callable[[int, int], bool]:
    left = dict(stands)

    def stands_or_dies(rank: int, update: int) -> bool:
        if seconds := left.pop((rank, update), 0.0):
            stand_still(seconds)
            current.here().wire.clock.sleep(seconds)
        return False

    return stands_or_dies


def after(training: Training, rank: int, update: int) -> int:
    """The micro-batches that a worker has computed in an update and later ones."""
    return sum(of >= update for of, _ in training.computed[rank])


@pytest.mark.parametrize("logs", ["long", "small"])
@pytest.mark.parametrize("name", STANDS)
def test_losses_stay_where_workers_stand_still(name: str, logs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if logs == "small":
        small_logs(monkeypatch)  # a replica that missed rounds becomes a copy of another one
    training = Training(size=4, micro_batches=2, strategy="quorum", meets=False, dies=standing(STANDS[name]))
    check(training)
    counts = {rank: after(training, rank, 12) for rank in range(4)}
    assert len(set(counts.values())) == 1, "each has its share again"
    (first, *_) = STANDS[name]
    of_step = [examples for own in training.computed.values() for update, examples in own if update == first[1]]
    assert len(of_step) > len(set(of_step)), "others have computed its micro-batches"


@pytest.mark.seeds(4, 40)
def test_random_silences_and_deaths(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    if seed % 2:
        small_logs(monkeypatch)
    size = draw.choice([2, 3, 4])
    places = [(rank, update) for rank in range(size) for update in range(8)]
    stands = {place: draw.choice([0.06, 0.3, 2.0]) for place in draw.sample(places, draw.randint(1, 4))}
    deaths = {draw.randrange(size): draw.randint(5, 100)} if draw.random() < 0.5 else {}
    chosen = {"micro_batches": draw.choice([1, 2]), "seed": seed, "evaluates": draw.random() < 0.5}
    check(Training(size=size, strategy="quorum", meets=False, dies=standing(stands), deaths=deaths, **chosen))
