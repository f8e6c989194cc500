"""A worker's own momentum across a checkpoint: as it was, or, in a world of another size, with the same mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.launch.worker.world import World
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.kept_trainings import in_world, train

CHOICE: dict[str, Any] = {"strategy": "quorum", "wait_for": "all", "momentum": "worker"}


MAKE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


def trained(world: World, kind: str, steps: int, save_at: int | None = None) -> list[torch.Tensor]:
    """Parameters and this worker's own momentum; a gradient is of the step and the rank."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer: Any = quorate.distribute(MAKE[kind](model.parameters()), model, with_one_worker="algorithm", **CHOICE)
    step = quorate.load() or 0
    while step < steps:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + world.rank))
        optimizer.zero_grad()
        (model(x) - world.rank).square().mean().backward()
        optimizer.step()
        step += 1
        if step == save_at:
            quorate.save()
    own = optimizer.__dict__["_quorate_worker"].replica.momentum.own
    state = [x.clone() for p in model.parameters() for x in (p.detach(), own[p].m)]
    optimizer.finish()
    return state


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_training_goes_on_with_the_momentum_of_each_worker(tmp_path: Path, size: int, kind: str) -> None:
    whole = in_world(size, tmp_path / "whole", lambda world: trained(world, kind, 12))
    in_world(size, tmp_path / "kept", lambda world: trained(world, kind, 8, save_at=5))
    again = in_world(size, tmp_path / "kept", lambda world: trained(world, kind, 12))
    for resumed, uninterrupted in zip(again, whole, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(resumed, uninterrupted, strict=True))


def moments(world: World, saves: bool) -> dict[str, torch.Tensor]:
    """The worker's own momentum by parameter, after it has trained and saved, or loaded."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer: Any = quorate.distribute(plain, model, **CHOICE)
    quorate.load()
    for _ in range(4 if saves else 0):
        optimizer.zero_grad()
        (model(torch.randn(4, 3)) - world.rank).square().mean().backward()
        optimizer.step()
    if saves:
        quorate.save()
    own = optimizer.__dict__["_quorate_worker"].replica.momentum.own
    momenta = {name: own[p].m.clone() for name, p in model.named_parameters()}
    optimizer.finish()
    return momenta


@pytest.mark.parametrize("size", [2, 4, 5])
def test_in_a_world_of_another_size_their_mean_stays(tmp_path: Path, size: int) -> None:
    before = in_world(3, tmp_path, lambda world: moments(world, True))
    after = in_world(size, tmp_path, lambda world: moments(world, False))
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

    @joined
    def live(world: World) -> int:
        model = torch.nn.Linear(3, 1)
        plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer: Any = quorate.distribute(plain, model, "quorum", wait_for=1)
        for step in range(12):
            if (world.rank, step) == (2, 4):
                world.wire.crash()
            world.wire.clock.sleep(0.01 * (1 + world.rank))
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().mean().backward()
            optimizer.step()
        optimizer.finish()
        own = optimizer.__dict__["_quorate_worker"].replica.momentum.own
        assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
        return min(moment.count for moment in own.values())

    outcomes = VirtualWorld(3, seed=1).outcomes(live)
    assert [outcome.result for outcome in outcomes[:2]] == [12, 12]
