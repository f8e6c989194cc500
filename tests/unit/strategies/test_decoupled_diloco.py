"""Decoupled DiLoCo: streaming DiLoCo where all wait for all; where nobody waits, every step is in one merge."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.vectors import Flat
from quorate.strategies.parts.learners import Learner, part_of
from quorate.strategies.parts.outer_gradients import merged_deltas
from quorate.strategies.parts.outer_steps import OuterOptimizer
from quorate.train.replica_copy import ReplicaCopy
from quorate.wire import current
from tests.support.local_trainings import loss, net
from tests.support.scene import Scene
from tests.unit.rounds.test_silence import let_stand_still, small_logs, stand_still

Pause = Callable[[random.Random, int], float]


def even(_draw: random.Random, _rank: int) -> float:
    return 0.01


def uneven(draw: random.Random, rank: int) -> float:
    """Rank 1 is four times slower."""
    return (0.01 + 0.02 * draw.random()) * (4 if rank == 1 else 1)


def ledger(optimizer: Any) -> Any:
    return optimizer.__dict__["_quorate_worker"].rounds.rounds.ledger


def common(optimizer: Any) -> list[Tensor]:
    """Where this worker takes all to be, and what its outer optimizer remembers: not made equal by anything."""
    state = optimizer.__dict__["_quorate_worker"].state
    kept = [x for memory in state.memory for some in memory.values() if isinstance(some, list) for x in some]
    return [*state.common.segments(), *kept]


def are_equal(ends: list[tuple[Tensor, Any]]) -> bool:
    """Of workers whose `common` was looked at."""
    return all(torch.equal(x, y) for _, mine in ends for x, y in zip(mine, ends[0][1], strict=True))


def paces(pause: Pause, seed: int = 1) -> Callable[[int, int], float]:
    """Pauses of a scene whose workers draw theirs one after the other."""
    draws = defaultdict[int, Any](lambda: None)
    return lambda rank, step: pause(draws.setdefault(rank, random.Random(100 * seed + rank)), rank)


def scene(size: int, strategy: str, *, pause: Pause = even, seed: int = 1, **settings: Any) -> Scene:
    """Learners of one worker each."""
    chosen: dict[str, Any] = {"make": partial(torch.optim.AdamW, lr=0.01), "steps": 24, **settings}
    fields: dict[str, Any] = {"pause": paces(pause, seed), "world": {"seed": seed}, **chosen}
    return Scene(strategy, size, model=net, loss=lambda t: loss(t.model, t.rank, t.step), **fields)


def trained(
    size: int, strategy: str, look: Callable[[Any], Any] = lambda optimizer: None, **chosen: Any
) -> list[tuple[Tensor, Any]]:
    """The parameters of each worker in the end, and what `look` saw of its optimizer."""
    return scene(size, strategy, **chosen).run(lambda trainer: (trainer.parameters, look(trainer.optimizer)))


STREAMED: list[dict[str, Any]] = [
    {"sync_every": 4, "overlap": 0},
    {"sync_every": 4, "fragments": 2, "overlap": 0},
    {"sync_every": 4, "fragments": 2, "overlap": 1, "merge": 0.3},
    {"sync_every": 6, "overlap": 3, "outer": "adam", "outer_rate": 0.05, "outer_device": "cpu"},
]


@pytest.mark.parametrize(
    ("settings", "size"),
    [*((settings, size) for settings in STREAMED for size in (2, 3)), *((STREAMED[2], size) for size in (1, 5, 8))],
    ids=str,
)
def test_where_all_wait_for_all_it_is_streaming_diloco(settings: dict[str, Any], size: int) -> None:
    ends = trained(size, "decoupled-diloco", wait_for="all", averaging="mean", rests=(10,), **settings)
    streamed = trained(size, "diloco", rests=(10,), **settings)
    assert all(torch.equal(end, streamed[0][0]) for end, _ in ends)


UNEVEN: list[dict[str, Any]] = [
    {"sync_every": 8, "fragments": 2, "overlap": 2},
    {"sync_every": 8, "fragments": 2, "overlap": 2, "wait_for": 1, "window": 0.0},
    {"sync_every": 6, "fragments": 3, "overlap": 1, "wait_for": 2, "averaging": "mean"},
    {"sync_every": 4, "wait_for": 1, "overlap": 0},
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", UNEVEN, ids=str)
def test_every_step_of_every_learner_is_in_one_merge(settings: dict[str, Any], seed: int) -> None:
    size, fragments = 3 + seed % 2, settings.get("fragments", 1)
    run: dict[str, Any] = {"pause": uneven, "rests": (11,), "seed": seed, **settings}
    kept = [one for _, one in trained(size, "decoupled-diloco", look=ledger, **run)]
    assert all((one.produced, one.taken, one.lost) == (24 * fragments, 24 * fragments, 0.0) for one in kept)
    assert are_equal(trained(size, "decoupled-diloco", look=common, **run))


def test_nobody_waits_for_a_slow_learner() -> None:
    """The others make their 24 steps of 20 ms in the mean while one makes six of its own."""

    def made(**settings: Any) -> float:
        times: list[float] = []

        def pause(draw: random.Random, rank: int) -> float:
            if rank == 0:
                times.append(current.here().wire.clock.now())
            return uneven(draw, rank)

        trained(4, pause=pause, sync_every=4, overlap=1, **settings)
        return times[-1]

    assert made(strategy="decoupled-diloco", wait_for=2) < 0.8 < 1.2 < made(strategy="diloco")


@pytest.mark.parametrize("outer", ["sgd", "adam"])
def test_one_that_stands_still_takes_a_copy_of_the_outer_optimizer_too(
    outer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are kept for nobody, so that what it missed has to be copied."""
    let_stand_still(monkeypatch)
    small_logs(monkeypatch)
    copies: list[bool] = []
    adopt = ReplicaCopy.adopt

    def adopting(self: ReplicaCopy, header: dict[str, Any], tensors: Any) -> None:
        copies.append(header["whole"] is None)
        adopt(self, header, tensors)

    monkeypatch.setattr(ReplicaCopy, "adopt", adopting)
    steps: dict[int, int] = {}

    def pause(draw: random.Random, rank: int) -> float:
        steps[rank] = steps.get(rank, 0) + 1
        if (rank, steps[rank]) == (2, 6):
            stand_still(1.0)
            return 1.0
        return uneven(draw, 0)

    choice: dict[str, Any] = {"sync_every": 4, "fragments": 2, "wait_for": 1, "outer": outer, "outer_rate": 0.3}
    ends = trained(3, "decoupled-diloco", steps=60, pause=pause, look=common, **choice)
    assert copies == [True]
    assert are_equal(ends)


@pytest.mark.parametrize("size", [2, 3])
def test_a_merge_is_radial_or_plain(size: int) -> None:
    """Two learners go 3 along one axis, and 1 along the other: the mean is as long as theirs are in the mean."""
    layout = layout_of([("x", torch.zeros(2)), ("numbers", torch.zeros(2))], header=1)
    ways, weights = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 1.0])], [0.5, 1.5]

    def sums(radial: bool) -> Flat:
        found = Flat.zeros(layout)
        x, numbers = found.segments()
        for way, weight in zip(ways, weights, strict=True):
            norm = float(way.norm())
            x.add_(way * weight / size / (norm if radial else 1.0))
            numbers.add_(torch.tensor([weight, norm * weight if radial else 0.0]))
        return found

    plain, radial = merged_deltas(sums(False), size), merged_deltas(sums(True), size)
    assert plain is not None and radial is not None
    assert torch.allclose(plain[0], (ways[0] * 0.5 + ways[1] * 1.5) / 2)
    direction = torch.tensor([0.5, 1.5])
    assert torch.allclose(radial[0], direction / direction.norm() * (3.0 * 0.5 + 1.0 * 1.5) / 2)
    assert merged_deltas(Flat.zeros(layout), size) is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"averaging": "spherical"}, "averaging"),
        ({"window": -1.0, "overlap": 1}, "window is -1.0; it must be a number of seconds"),
        ({"fragments": 3, "sync_every": 4}, "sync_every must be a multiple of fragments"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        trained(1, "decoupled-diloco", steps=1, **settings)


KEPT: list[dict[str, Any]] = [{"fragments": 2, "overlap": 0}, {"fragments": 2, "outer": "adam", "outer_device": "cpu"}]


def resumable(size: int = 3, **settings: Any) -> Scene:
    return scene(size, "decoupled-diloco", steps=14, sync_every=4, **{"wait_for": "all", **settings})


@pytest.mark.parametrize("save_at", [5, 6])
@pytest.mark.parametrize("settings", KEPT, ids=str)
def test_a_training_goes_on_bit_for_bit(settings: dict[str, Any], save_at: int, tmp_path: Path) -> None:
    whole, rest = resumable(**settings).resumed(tmp_path, save_at, 9)
    assert all(map(torch.equal, rest, whole))


@pytest.mark.parametrize("size", [2, 5])
def test_it_goes_on_with_another_number_of_learners(size: int, tmp_path: Path) -> None:
    resumable(fragments=2, root=tmp_path, saves=[5]).but(steps=9).run()
    assert resumable(size, fragments=2, root=tmp_path, loads=True, outer_rate=0.5).end().isfinite().all()


@pytest.mark.parametrize("seed", range(3))
def test_learners_that_begin_apart_come_to_hand_in_together(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six learners begin within a period of each other, and then all make steps of 20 ms."""
    times: dict[int, list[float]] = {}
    was_handed_in = Learner.was_handed_in

    def noting(self: Learner, worker: Any, given: Any) -> None:
        times.setdefault(worker.rank, []).append(worker.now())
        was_handed_in(self, worker, given)

    monkeypatch.setattr(Learner, "was_handed_in", noting)
    made: dict[int, int] = {}

    def pause(draw: random.Random, rank: int) -> float:
        made[rank] = made.get(rank, 0) + 1
        return 0.01 if made[rank] > 1 else 0.08 * draw.random()

    trained(6, "decoupled-diloco", steps=120, pause=pause, seed=seed, sync_every=16, fragments=2, overlap=1)
    assert len(times) == 6
    begins = [own[0] for own in times.values()]
    assert max(begins) - min(begins) > 0.04
    for one in times[0][3:-2]:  # in the end each hands in what it has left
        near = [min(abs(other - one) for other in own) for own in times.values()]
        assert max(near) < 0.0201


def test_an_outer_gradient_is_over_all_learners_or_those_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learner 1 makes no step while the other one hands in."""
    norms: list[float] = []
    step = OuterOptimizer.step

    def noting(self: OuterOptimizer, worker: Any, point: Flat, gradient: Flat, *rest: Any) -> None:
        if worker.rank == 0:
            norms.append(float(gradient.parts[0].norm()))
        step(self, worker, point, gradient, *rest)

    monkeypatch.setattr(OuterOptimizer, "step", noting)
    choice: dict[str, Any] = {"sync_every": 4, "wait_for": 1, "overlap": 0, "steps": 4}
    for divide_by in ("world", "arrived"):
        trained(2, "decoupled-diloco", pause=lambda _, rank: 0.01 + rank, divide_by=divide_by, **choice)
    over_all, over_one = norms[0], norms[len(norms) // 2]
    assert over_all == pytest.approx(over_one / 2)


def test_who_has_ended_counts_and_who_has_nothing_does_not() -> None:
    layout = layout_of([("x", torch.zeros(2))], header=1)
    told = {0: [{"weights": [1.0, 0.5]}], 2: [{"weights": [0.0, 1.0]}], 3: []}
    one = Mean(mean=Flat.zeros(layout), payloads=told, learners=4)
    assert [part_of(fragment, one) for fragment in (0, 1)] == [0.25, 0.5]
