"""Local steps that were cut off between two means go on, every worker with its own replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.kept_trainings import in_world, train
from tests.support.scene import Scene, apart

STEPS = 13


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("local-sgd", {"sync_every": 3}),
        ("post-local-sgd", {"sync_every": 3, "after": 4}),
        ("slowmo", {"sync_every": 2, "slow_every": 2}),
        ("diloco", {"sync_every": 3, "outer_device": "cpu"}),
        ("diloco", {"sync_every": 4, "fragments": 2, "outer": "adam"}),
        ("adaptive-local-sgd", {"sync_every": 2}),
        ("group-averaging", {"sync_every": 3}),
        ("easgd", {"sync_every": 3, "in_order": True}),
        ("easgd", {"sync_every": 2, "in_order": True, "servers": 1}),
        ("symmetric-easgd", {"sync_every": 3}),
        ("hierarchical-local-sgd", {"sync_every": 1, "across_every": 3, "group_size": 2}),
    ],
)
def test_it_goes_on_bit_for_bit(strategy: str, settings: dict[str, Any], tmp_path: Path) -> None:
    choice = {"strategy": strategy, "optimizer": "sgd", **settings}
    whole = in_world(2, tmp_path / "none", lambda world: train(world, STEPS, **choice))
    saved = in_world(
        2, tmp_path / "kept", lambda world: train(world, 9, saves=lambda rank, step: step in (5, 7), **choice)
    )
    rest = in_world(2, tmp_path / "kept", lambda world: train(world, STEPS, **choice))
    assert len(saved) == 2
    for one, other in zip(whole, rest, strict=True):
        assert other.began == 7
        assert all(torch.equal(x, y) for x, y in zip(one.state, other.state, strict=True))


@pytest.mark.parametrize(
    "strategy", ["local-sgd", "slowmo", "diloco", "eager-averaging", "group-averaging", "easgd", "symmetric-easgd"]
)
def test_it_goes_on_with_more_workers_and_fewer(strategy: str, tmp_path: Path) -> None:
    scene = Scene(strategy, root=tmp_path, heavy=0.9, steps=STEPS, loss=apart, sync_every=2)
    scene.but(steps=7, saves=[5]).run()
    for size in (2, 4):
        trainers = scene.but(size=size, loads=True).run()
        assert all((trainer.began or 0) >= 4 for trainer in trainers)
        assert all(torch.equal(trainer.parameters, trainers[0].parameters) for trainer in trainers)
        assert trainers[0].parameters.isfinite().all()


def test_fragments_may_be_others_after_a_checkpoint(tmp_path: Path) -> None:
    choice = {"strategy": "diloco", "optimizer": "sgd", "sync_every": 4}
    in_world(2, tmp_path, lambda world: train(world, 9, saves=lambda rank, step: step in (5, 7), **choice))
    rest = in_world(2, tmp_path, lambda world: train(world, STEPS, fragments=2, **choice))
    assert all(one.began in (5, 7) for one in rest)
    assert all(bool(x.isfinite().all()) for one in rest for x in one.state)


def test_each_save_between_two_means_is_one(tmp_path: Path) -> None:
    scene = Scene("local-sgd", 2, root=tmp_path, steps=11, saves=[2, 5, 8], loads=True, sync_every=50)
    assert [trainer.began for trainer in scene.run()] == [None, None]
    assert [trainer.began for trainer in scene.run()] == [8, 8]
