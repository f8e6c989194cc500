"""Gossip in checkpoints: every replica is kept, nothing is in flight, and what was cut off goes on the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quorate.checkpoint.folder import complete_ones
from tests.support.kept_trainings import Told, in_world, train

STEPS = 17
NAMES = ["d-psgd", "sgp", "osgp", "d2", "choco-sgd", "dcd-psgd", "ecd-psgd"]


def saves(rank: int, step: int) -> bool:
    return step in (4, 8)


def run(size: int, root: Path, name: str, steps: int = STEPS) -> list[Told]:
    return in_world(size, root, lambda world: train(world, steps, saves=saves, strategy=name), seed=3)


@pytest.mark.parametrize("size", [3])
@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_bit_for_bit(name: str, size: int, tmp_path: Path) -> None:
    whole = run(size, tmp_path / "whole", name)
    run(size, tmp_path / "cut", name, 11)
    assert [path.name for path in complete_ones(tmp_path / "cut")] == ["step-00000008", "step-00000004"]
    for uninterrupted, resumed in zip(whole, run(size, tmp_path / "cut", name), strict=True):
        assert resumed.began == 8
        assert all(torch.equal(x, y) for x, y in zip(uninterrupted.state, resumed.state, strict=True))


@pytest.mark.parametrize("name", ["ad-psgd", "relay"])
def test_where_it_does_not_it_goes_on_all_the_same(name: str, tmp_path: Path) -> None:
    run(2, tmp_path, name, 11)
    ends = run(2, tmp_path, name)
    assert ends[0].began == 8
    for end in ends:
        assert all(bool(torch.isfinite(x).all()) for x in end.state)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [*((name, 4, 2) for name in ("d-psgd", "sgp", "ad-psgd", "d2", "relay")), ("sgp", 2, 4), ("ad-psgd", 2, 4)],
)
def test_another_number_of_workers_goes_on(name: str, before: int, after: int, tmp_path: Path) -> None:
    run(before, tmp_path, name, 11)
    for end in in_world(after, tmp_path, lambda world: train(world, STEPS, strategy=name)):
        assert end.began is not None
        assert all(bool(torch.isfinite(x).all()) for x in end.state)
