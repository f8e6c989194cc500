"""Learners of several workers: one replica among them in every step, and one learner for all others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.gossip import neighbours
from quorate.quorums.worker_group import WorkerGroup
from quorate.rounds.of_worker import rounds_of
from quorate.rounds.terms import Agreed
from quorate.strategies.parts.learner_workers import LearnerWorkers
from tests.support.learner_trainings import ASYNC, DECOUPLED, Training, drawn
from tests.unit.rounds.test_silence import let_stand_still, small_logs
from tests.unit.strategies.test_decoupled_diloco import ledger, resumable, trained, uneven

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("decoupled-diloco", {"sync_every": 8, "fragments": 2, "overlap": 2}),
    ("decoupled-diloco", {"sync_every": 4, "overlap": 0, "wait_for": 1, "averaging": "mean"}),
    ("async-local-sgd", {"sync_every": 4}),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("strategy", "settings"), SETTINGS, ids=str)
def test_groups_of_one_are_learners_of_one_worker(strategy: str, settings: dict[str, Any], seed: int) -> None:
    run: dict[str, Any] = {"pause": uneven, "rests": (11,), "seed": seed, **settings}
    each = trained(3, strategy, look=ledger, **run)
    groups = trained(3, strategy, look=ledger, learners=3, **run)
    assert all(torch.equal(x, y) and one == other for (x, one), (y, other) in zip(each, groups, strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("settings", [{}, {"fragments": 2}], ids=str)
def test_one_learner_is_synchronous_training(settings: dict[str, Any], size: int) -> None:
    plain = {"outer_rate": 1.0, "outer_momentum": 0.0, "averaging": "mean"}
    ends = trained(size, "decoupled-diloco", sync_every=4, overlap=0, learners=1, pause=uneven, **plain, **settings)
    synchronous = trained(size, "all-reduce")
    assert all(torch.equal(end, ends[0][0]) for end, _ in ends)
    assert torch.allclose(ends[0][0], synchronous[0][0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("strategy", "settings"), SETTINGS, ids=str)
def test_workers_of_a_learner_have_the_same_bits_after_each_step(
    strategy: str, settings: dict[str, Any], seed: int
) -> None:
    one = Training(5, 2, strategy, settings, seed=seed, slow=[1, 2, 1, 1, 1], evaluates=lambda rank: {10})
    one.far = {2: 0.008, 4: 0.012}  # so a round is there sooner for one than for another one of the same learner
    ends = one.run()
    assert one.unequal() == 0 and all(end == ends[0] for end in ends)
    assert one.bits[0][:9] != one.bits[3][:9]


@pytest.mark.seeds(4, 12)
def test_every_step_of_every_learner_is_in_one_merge(seed: int) -> None:
    one = drawn(seed, evaluates=lambda rank: {7})
    one.strategy, one.settings = "async-local-sgd", ASYNC
    ends = one.run()
    assert all(one.counted(end) == pytest.approx(16 * one.learners) for end in ends)


@pytest.mark.seeds(6, 40)
def test_random_deaths_cost_a_learner_with_survivors_nothing(seed: int) -> None:
    one, draw = drawn(seed), random.Random(seed + 1)
    victims = draw.sample(range(one.size), draw.choice([1, 1, 2, one.size - 1]))
    one.deaths = {rank: draw.randint(1, draw.choice([8, 40, 110, 300])) for rank in victims}
    if draw.random() < 0.5:
        one.evaluates = lambda rank: {5, 11}
    ends = one.run()
    assert all(end == ends[0] for end in ends)
    assert one.unequal() == 0
    if one.strategy == "async-local-sgd" and ends:
        least = 0 if one.evaluates(0) else one.made(at_most=False)  # who dies in a rest may take steps along
        assert least - 1e-9 <= one.counted(ends[0]) <= one.made(at_most=True) + 1e-9


@pytest.mark.parametrize("who", [[0], [1], [0, 1], [2, 3]], ids=str)
@pytest.mark.parametrize("strategy", ["decoupled-diloco", "async-local-sgd"])
def test_workers_of_a_learner_die(strategy: str, who: list[int]) -> None:
    """Rank 0 leads, and hands in for its learner, as rank 2 does for the other one."""
    settings = ASYNC if strategy == "async-local-sgd" else DECOUPLED[-1]
    one = Training(4, 2, strategy, settings, deaths={rank: 60 + 7 * rank for rank in who})
    ends = one.run()
    assert one.dead == set(who) and one.unequal() == 0
    assert all(end == ends[0] for end in ends)


@pytest.mark.parametrize("strategy", ["decoupled-diloco", "async-local-sgd"])
def test_another_one_hands_in_what_one_was_about_to(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 dies where it would hand in for the last time."""
    hands_in = LearnerWorkers.hands_in

    def dying(self: LearnerWorkers, worker: Any) -> bool:
        if (worker.rank, worker.step) == (0, 16):
            worker.wire.crash()
        return hands_in(self, worker)

    monkeypatch.setattr(LearnerWorkers, "hands_in", dying)
    one = Training(2, 1, strategy, ASYNC if strategy == "async-local-sgd" else DECOUPLED[0])
    (end,) = one.run(dies_otherwise={0})
    per_step = 1 if strategy == "async-local-sgd" else 2  # of which every second one goes half the way
    assert one.counted(end) == pytest.approx(16 * per_step)


@pytest.mark.seeds(4, 16)
def test_workers_of_a_learner_end_and_rest_at_different_steps(seed: int) -> None:
    """Who steps on goes on without those that rest; after it all are equal again, and steps of all count once."""
    one, draw = drawn(seed), random.Random(seed)
    one.steps = [16 + draw.randint(0, 6) for _ in range(one.size)]
    if seed % 2:
        rests = draw.randint(3, 12)
        one.evaluates = lambda rank: {rests}
    ends = one.run()
    assert all(end == ends[0] for end in ends)
    assert one.unequal() == 0
    if one.strategy == "async-local-sgd":
        steps = sum(max(one.steps[rank] for rank in one.of(learner)) for learner in range(one.learners))
        assert one.counted(ends[0]) == pytest.approx(steps)


def test_who_rests_earlier_is_equal_to_its_learner_again() -> None:
    """Rank 1 rests before its sixth step, rank 0 before its ninth: what their optimizers keep is another by then."""
    one = Training(3, 2, "decoupled-diloco", DECOUPLED[0], momentum=0.9)
    one.evaluates, one.steps = (lambda rank: {5 if rank == 1 else 8}), [24, 24, 20]
    ends = one.run()
    assert all(end == ends[0] for end in ends)
    assert one.bits[0][7] != one.bits[1][7] and one.bits[0][8:21] == one.bits[1][5:18]


def test_nobody_waits_for_one_of_its_learner_that_has_ended() -> None:
    """Rank 1 rests, and rank 0 ends meanwhile; then rank 1 goes on alone."""
    one = Training(3, 2, "async-local-sgd", ASYNC)
    one.evaluates, one.steps = (lambda rank: {5} if rank else ()), [9, 16, 16]
    ends = one.run()
    assert all(end == ends[0] for end in ends)
    assert one.counted(ends[0]) == pytest.approx(9 + 11 + 16)  # rank 1 makes its sixth to sixteenth after the rest


@pytest.mark.seeds(3, 12)
def test_one_that_stood_still_gets_the_replica_of_its_learner(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 leads, and keeps no results for it: what it missed is copied. Steps of its learner count all the same."""
    let_stand_still(monkeypatch)
    small_logs(monkeypatch)
    repaired: list[int] = []
    adopt = WorkerGroup._adopt

    def adopting(self: WorkerGroup, *args: Any) -> None:
        repaired.append(self._wire.rank)
        adopt(self, *args)

    monkeypatch.setattr(WorkerGroup, "_adopt", adopting)
    who = 2 + seed % 2
    settings = ASYNC if seed % 3 else {**DECOUPLED[-3], "wait_for": 1}
    settings = {**settings, **({"compress": "blocks", "bits": 4, "dense_below": 0} if seed % 3 == 0 else {})}
    one = Training(4, 2, "async-local-sgd" if seed % 3 else "decoupled-diloco", settings, seed=seed)
    one.steps, one.stuck = [160, 160, 40, 40], {(who, 6 + seed % 4): 2.0}
    ends = one.run()
    assert repaired == [who] and one.unequal() <= 1 and len({one.bits[rank][-1] for rank in (2, 3)}) == 1
    assert all(end == ends[0] for end in ends)
    if seed % 3:
        assert one.counted(ends[0]) == pytest.approx(200)


def test_learners_are_ranks_that_follow_each_other_or_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, ...]] = set()

    def learners(optimizer: Any) -> None:
        seen.add(optimizer.__dict__["_quorate_worker"].state.workers.of)

    trained(5, "decoupled-diloco", steps=1, learners=2, look=learners)
    trained(4, "async-local-sgd", steps=1, learners="host", look=learners)
    monkeypatch.setattr(neighbours, "hosts_of", lambda wire: ("a", "b", "a"))
    trained(3, "async-local-sgd", steps=1, learners="host", look=learners)
    assert seen == {(0, 0, 0, 1, 1), (0, 0, 0, 0), (0, 1, 0)}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"learners": 0}, "learners is 0; it must be a number"),
        ({"learners": 3}, 'learners is 3, and there are 2 workers; it must be a number from 1 to 2, "each" or "host"'),
        ({"learners": "rack"}, "learners of decoupled-diloco"),
        ({"learners": 1, "wait_for": 2}, "wait_for is 2, and there are 1 learners; it must be from 1 to 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        trained(2, "decoupled-diloco", steps=1, **settings)


def test_nobody_joins_a_learner_of_several_workers() -> None:
    def late(wire: Wire) -> Wire:
        wire.clock.sleep(0.05 if wire.rank == 2 else 0.0)
        return wire

    scene = Training(2, 1, "async-local-sgd", ASYNC, steps=[16] * 3, slow=[1] * 3).scene()
    *others, one = scene.but(wraps=late, world={"joiners": 1, "timeout": 60.0}).outcomes()
    assert isinstance(one.error, ConfigurationError) and "with learners of one worker" in str(one.error)
    assert all(other.error is None for other in others)


def test_they_are_not_replayed() -> None:
    agreed: Any = Agreed(size=2, learners=(0, 0), fragments=1)
    nothing: Any = None
    tape: Any = object()
    with pytest.raises(ConfigurationError, match="learners of several workers cannot be replayed"):
        rounds_of(nothing, agreed, nothing, nothing, nothing, nothing, tape)


@pytest.mark.parametrize("save_at", [5, 6])
def test_a_training_goes_on_bit_for_bit(save_at: int, tmp_path: Path) -> None:

    whole, rest = resumable(fragments=2, learners=2, overlap=1).resumed(tmp_path, save_at, 9)
    assert all(map(torch.equal, rest, whole))


@pytest.mark.parametrize("size", [2, 5])
def test_it_goes_on_with_other_learners(size: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"fragments": 2, "learners": 2, "root": tmp_path}
    resumable(saves=[5], **settings).but(steps=9).run()
    assert resumable(size, loads=True, **settings).end().isfinite().all()
