"""A worker's own momentum across a checkpoint: as it was, or, in a world of another size, with the same mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.kept_trainings import in_world, train
from tests.support.scene import Scene, Trainer, apart, flat

CHOICE: dict[str, Any] = {"strategy": "quorum", "wait_for": "all", "momentum": "worker"}


MAKE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


def momenta(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The worker's own momentum by parameter."""
    own = trainer.worker.replica.momentum.own
    return {name: own[p].m.clone() for name, p in trainer.model.named_parameters()}


def play(trainer: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters and the own momentum before the end."""
    trainer.train(trainer.scene.steps)
    seen = trainer.parameters, flat(momenta(trainer).values())
    trainer.finish()
    return seen


def scene(size: int, root: Path, kind: str = "SGD", **chosen: Any) -> Scene:
    return Scene(size=size, model=(3, 2), make=MAKE[kind], loss=apart, root=root, loads=True, **CHOICE, **chosen)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_training_goes_on_with_the_momentum_of_each_worker(tmp_path: Path, size: int, kind: str) -> None:
    whole = scene(size, tmp_path / "whole", kind, steps=12).act(play)
    scene(size, tmp_path / "kept", kind, steps=8, saves=[5]).act(play)
    again = scene(size, tmp_path / "kept", kind, steps=12).act(play)
    for resumed, uninterrupted in zip(again, whole, strict=True):
        assert all(map(torch.equal, resumed, uninterrupted))


@pytest.mark.parametrize("size", [2, 4, 5])
def test_in_a_world_of_another_size_their_mean_stays(tmp_path: Path, size: int) -> None:
    before = scene(3, tmp_path, saves=[4]).act(lambda trainer: momenta(trainer.train(4)))
    after = scene(size, tmp_path).act(momenta)
    for name in before[0]:
        mean = sum(momenta[name] for momenta in before) / 3
        assert not torch.allclose(before[0][name], before[1][name])
        assert torch.allclose(sum(momenta[name] for momenta in after) / size, mean, atol=1e-6)


def test_a_checkpoint_of_the_common_optimizer_is_gone_on_from(tmp_path: Path) -> None:
    """From then on every worker has the common momentum."""
    common = {**CHOICE, "momentum": "common", "optimizer": "sgd"}
    in_world(2, tmp_path, lambda world: train(world, 6, saves=lambda rank, step: step == 6, **common))
    (first, other) = in_world(2, tmp_path, lambda world: train(world, 6, **{**common, "momentum": "worker"}))
    assert first.began == other.began == 6
    momenta = [end.state[7:] for end in (first, other)]
    assert all(torch.equal(x, y) and bool(x.abs().max() > 0) for x, y in zip(*momenta, strict=True))


def test_one_that_has_died_or_joins_leaves_and_brings_none() -> None:
    """A pending gradient is applied; the momentum of a dead worker goes to no one, and a joining worker has none."""
    pause = lambda rank, step: 0.01 * (1 + rank)  # noqa: E731
    fields: dict[str, Any] = {"heavy": 0.9, "steps": 12, "pause": pause, "dies": {2: 4}, "world": {"seed": 1}}
    for trainer in Scene("quorum", wait_for=1, **fields).survivors().values():
        assert trainer.parameters.isfinite().all()
        assert min(moment.count for moment in trainer.worker.replica.momentum.own.values()) == 12
