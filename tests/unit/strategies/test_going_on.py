"""Local steps that were cut off between two means go on, every worker with its own replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.launch.worker.world import World
from tests.support.kept_trainings import in_world, train

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


def steps_of(world: World, steps: int, strategy: str, *, saves: int = -1) -> tuple[int | None, torch.Tensor]:
    """Train up to `steps` steps, saving after `saves`; where it began, and the parameters at the end."""
    torch.manual_seed(1)
    model = nn.Linear(3, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer: Any = quorate.distribute(plain, model, strategy, sync_every=2)
    began = quorate.load()
    for step in range((began or 0) + 1, steps + 1):
        optimizer.zero_grad()
        draw = torch.Generator().manual_seed(100 * step + world.rank)
        (model(torch.randn(4, 3, generator=draw)) - world.rank).square().mean().backward()
        optimizer.step()
        if step == saves:
            quorate.save()
    optimizer.finish()
    return began, torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize(
    "strategy", ["local-sgd", "slowmo", "diloco", "eager-averaging", "group-averaging", "easgd", "symmetric-easgd"]
)
def test_it_goes_on_with_more_workers_and_fewer(strategy: str, tmp_path: Path) -> None:
    in_world(3, tmp_path, lambda world: steps_of(world, 7, strategy, saves=5))
    for size in (2, 4):
        ends = in_world(size, tmp_path, lambda world: steps_of(world, STEPS, strategy))
        assert all((began or 0) >= 4 for began, _ in ends)
        assert all(torch.equal(end, ends[0][1]) for _, end in ends)
        assert ends[0][1].isfinite().all()


def test_fragments_may_be_others_after_a_checkpoint(tmp_path: Path) -> None:
    choice = {"strategy": "diloco", "optimizer": "sgd", "sync_every": 4}
    in_world(2, tmp_path, lambda world: train(world, 9, saves=lambda rank, step: step in (5, 7), **choice))
    rest = in_world(2, tmp_path, lambda world: train(world, STEPS, fragments=2, **choice))
    assert all(one.began in (5, 7) for one in rest)
    assert all(bool(x.isfinite().all()) for one in rest for x in one.state)


def test_each_save_between_two_means_is_one(tmp_path: Path) -> None:
    def run(world: World) -> int | None:
        model = nn.Linear(3, 1)
        plain = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer: Any = quorate.distribute(plain, model, "local-sgd", sync_every=50)
        began = quorate.load()
        for step in range((began or 0) + 1, 12):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
            if step in (2, 5, 8):
                quorate.save()
        optimizer.finish()
        return began

    assert in_world(2, tmp_path, run) == [None, None]
    assert in_world(2, tmp_path, run) == [8, 8]
