"""What is learnt from ways of learners that codecs write small: who never waits, deaths, joins, checkpoints, hosts."""

from __future__ import annotations

import random
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.rounds import forming
from quorate.strategies import strategies
from quorate.train.reduced import with_reduction
from quorate.wire.virtual.network import Network
from tests.contract.test_compressed import CODED, Loop, scene
from tests.support.learner_trainings import ASYNC, Training, drawn
from tests.support.scene import Scene, Trainer, squares
from tests.unit.rounds.test_joining import Plan, check
from tests.unit.strategies.test_decoupled_diloco import ledger, resumable, uneven
from tests.unit.strategies.test_decoupled_diloco import trained as plainly_trained

UNDER: dict[str, dict[str, Any]] = {
    "radial": {"strategy": "decoupled-diloco", "sync_every": 6, "outer_momentum": 0.5},
    "mean, in fragments": {
        "strategy": "decoupled-diloco",
        "sync_every": 6,
        "averaging": "mean",
        "fragments": 3,
        "outer_momentum": 0.5,
    },
    "as they come": {"strategy": "async-local-sgd", "sync_every": 6, "outer_momentum": 0.5},
}
CODES = {name: CODED[name] for name in ("half", "top-k", "chunked-top-k", "sign")}
CODES["4 bits"] = {"compress": "blocks", "bits": 4, "dense_below": 0}


@cache
def dense(under: str) -> float:
    return Loop(UNDER[under]).run()[0]


@pytest.mark.covering(("name", "under"), product(CODES, UNDER))
def test_an_ordinary_loop_learns_nearly_as_much(name: str, under: str) -> None:
    loss, replicas = Loop(UNDER[under] | CODES[name], uneven=under == "radial").run()
    assert all(torch.equal(replica, replicas[0]) for replica in replicas)
    assert loss <= 1.6 * dense(under) + 0.02, f"{loss:.4f}, dense {dense(under):.4f}"


@pytest.mark.parametrize("name", CODES)
@pytest.mark.seeds(2, 8)
def test_they_die_and_join_at_any_time(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    size, strategy = draw.choice([2, 3, 5]), draw.choice(["decoupled-diloco", "async-local-sgd"])
    hosts = draw.choice([None, [0, 0, 1, 1, 2, 2]])
    if hosts is not None:
        monkeypatch.setattr(forming, "HUB_BYTES", 0)  # so that hosts form rounds, however small they are
    plan = Plan(
        size=size,
        strategy=strategy,
        settings={"sync_every": 4, **CODES[name]},
        joins={size: draw.uniform(0.0, 0.5)} if draw.random() < 0.6 else {},
        deaths={rank: draw.randint(1, 150) for rank in draw.sample(range(size), draw.choice([0, 1]))},
        seed=seed,
        network=None if hosts is None else Network(hosts=hosts),
        pace=lambda rank: 0.01 * (1 + rank),
    )
    check(plan, plan.run())


OF_WORKERS = (
    {"compress": "top-k", "density": 0.2, "dense_below": 0},
    {"compress": "blocks", "bits": 4, "dense_below": 0},
)


@pytest.mark.parametrize("name", ["half", "top-k"])
def test_learners_of_several_workers_learn_nearly_as_much(name: str) -> None:
    under = UNDER["mean, in fragments"] | {"learners": 2}
    loss, replicas = Loop(under | CODES[name]).run(4)
    assert all(torch.equal(replica, replicas[0]) for replica in replicas)
    plain = Loop(under).run(4)[0]
    assert loss <= 1.6 * plain + 0.02, f"{loss:.4f}, dense {plain:.4f}"


@pytest.mark.parametrize("codes", OF_WORKERS, ids=str)
@pytest.mark.parametrize("strategy", ["decoupled-diloco", "async-local-sgd"])
def test_groups_of_one_are_learners_of_one_worker(strategy: str, codes: dict[str, Any]) -> None:
    run: dict[str, Any] = {"pause": uneven, "rests": (11,), "sync_every": 4, **codes}
    each, groups = (plainly_trained(3, strategy, look=ledger, **own, **run) for own in ({}, {"learners": 3}))
    assert all(torch.equal(x, y) and one == other for (x, one), (y, other) in zip(each, groups, strict=True))


@pytest.mark.seeds(4, 24)
def test_workers_of_a_learner_die_end_and_rest_and_stay_equal(seed: int) -> None:
    """Who hands in encodes for all; another one begins with nothing left out."""
    one, draw = drawn(seed), random.Random(seed + 1)
    one.settings = {**one.settings, **OF_WORKERS[seed % 2]}
    victims = draw.sample(range(one.size), draw.choice([0, 1, 1, 2, one.size - 1]))
    one.deaths = {rank: draw.randint(1, draw.choice([8, 40, 110, 300])) for rank in victims}
    one.steps = [16 + draw.randint(0, 6) for _ in range(one.size)]
    if draw.random() < 0.5:
        one.evaluates = lambda rank: {5, 11}
    ends = one.run()
    assert all(end == ends[0] for end in ends)
    assert one.unequal() == 0


@pytest.mark.seeds(4, 24)
def test_each_step_of_a_learner_is_in_one_merge_or_left_out(seed: int) -> None:
    """Whoever handed in, and however many did."""
    one, draw = drawn(seed), random.Random(seed)
    one.strategy, one.settings = "async-local-sgd", {**ASYNC, **OF_WORKERS[0]}
    one.steps = [16 + draw.randint(0, 6) for _ in range(one.size)]
    ends = one.run()
    steps = sum(max(one.steps[rank] for rank in one.of(learner)) for learner in range(one.learners))
    left = torch.stack(list(one.left.values())).sum(0)
    came = -2 * torch.tensor(ends[0][:3], dtype=left.dtype)
    torch.testing.assert_close(came + left, torch.full_like(left, steps), rtol=1e-5, atol=1e-4)
    assert left.any()


def test_one_worker_of_each_learner_encodes() -> None:
    one = Training(5, 2, "async-local-sgd", {**ASYNC, **OF_WORKERS[0]})
    one.run()
    assert one.left.keys() == {0, 3}


@pytest.mark.parametrize("codes", OF_WORKERS, ids=str)
def test_learners_of_several_workers_go_on_to_the_bit_from_a_checkpoint(tmp_path: Path, codes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"fragments": 2, "learners": 2, "overlap": 1, "wait_for": "all", **codes}
    whole, rest = resumable(**settings).resumed(tmp_path, 5, 9)
    assert all(torch.equal(end, other) for end, other in zip(rest, whole, strict=True))


@pytest.mark.parametrize("name", ["half", "top-k"])
def test_it_goes_on_to_the_bit_from_a_checkpoint(tmp_path: Path, name: str) -> None:
    """Where all are in every round; else which are depends on when workers come."""
    settings = UNDER["radial"] | {"sync_every": 3, "overlap": 0, "wait_for": "all"}

    whole, again = scene(name, 2, 16, **settings).resumed(tmp_path, 7, 9)
    assert all(map(torch.equal, again, whole))


@pytest.mark.parametrize("size", [2, 4])
def test_it_goes_on_with_other_workers(tmp_path: Path, size: int) -> None:
    scene("top-k", steps=8, root=tmp_path, saves=[5], **UNDER["radial"]).run()
    scene("top-k", size, root=tmp_path, loads=True, **UNDER["radial"]).end()


def left_out(trainer: Trainer) -> torch.Tensor:
    """What a worker that has gone on from a checkpoint has left out of its ways, by what they count."""
    error = trainer.worker.rounds.rounds._member.pending.coding.error_without(())
    trainer.finish()
    return trainer.world.size * torch.cat([x.cpu() for x in error.parts]) if error is not None else torch.zeros(129)


@pytest.mark.parametrize("size", [2, 4])
def test_in_a_world_of_another_size_the_sum_of_what_is_left_stays(tmp_path: Path, size: int) -> None:
    learners = scene("top-k", steps=20, root=tmp_path, **UNDER["radial"])
    learners.but(saves=[16]).run()
    before, after = (torch.stack(learners.but(size=n, loads=True).act(left_out)).sum(0) for n in (3, size))
    assert float(before.abs().max()) > 0.01
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("under", ["radial", "as they come"])
def test_ways_are_short_messages_between_hosts(under: str) -> None:
    def sent(**settings: Any) -> int:
        choice: dict[str, Any] = {"model": (300, 300), "rate": 0.01, "steps": 36, "pause": 0.01, "loss": squares}
        scene = Scene(**choice, world={"network": Network(hosts=[0, 1, 2])}, **UNDER[under], **settings)
        return sum(scene.act(lambda trainer: trainer.train(36).bytes_out))

    whole = sent()
    assert sent(compress="top-k", density=0.01) < 0.13 * whole
    assert sent(compress="chunked-top-k") < 0.15 * whole
    assert sent(compress="random-k", density=0.1) < 0.28 * whole
    assert sent(compress="half") < 0.8 * whole
    assert sent(compress="blocks", bits=4) < 0.3 * whole
    assert sent(compress="sign") < 0.15 * whole


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"compress": "power-sgd"}, "is for sums of all workers (all-reduce); under decoupled-diloco"),
        ({"compress": "top-k", "reduce": "gather"}, "is for sums of all workers (all-reduce); under decoupled-diloco"),
        ({"compress": "demo"}, "remembers more than what it leaves out"),
        ({"compress": "top-k", "error_decay": 0.9}, "error_decay=0.9 cannot be combined with decoupled-diloco"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        with_reduction(strategies.get("decoupled-diloco"), settings, "decoupled-diloco")
    assert sentence in str(refused.value)
