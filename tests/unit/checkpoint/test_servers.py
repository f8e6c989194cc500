"""Parameters on servers in checkpoints: numbers and states whole, whoever kept them, for any number of workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.launch.worker.world import World
from tests.support.kept_trainings import in_world

MODES: list[dict[str, Any]] = [
    {},
    {"mode": "bounded", "in_order": True},
    {"mode": "async", "in_order": True},
    {"compress": "top-k", "density": 0.3, "dense_below": 0},
    {"momentum": "worker", "mode": "async", "in_order": True},
]


def trained(world: World, steps: int, settings: dict[str, Any]) -> tuple[int | None, list[Tensor]]:
    """Parameters and what the optimizer keeps, after so many steps, of which the fifth is kept."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    plain: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    if settings.get("momentum") == "worker":
        plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer: Any = quorate.distribute(plain, model, "parameter-server", **settings)
    began = quorate.load()
    for step in range(began or 0, steps):
        x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + world.rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        world.wire.clock.sleep(0.01 * (1 + world.rank))
        optimizer.step()
        if step == 4:
            quorate.save()
    optimizer.finish()
    kept = [x for p in model.parameters() for x in optimizer.state[p].values() if x is not None]
    return began, [x.detach().clone() for x in (*model.parameters(), *kept)]


@pytest.mark.parametrize("settings", MODES)
def test_what_was_cut_off_goes_on_bit_for_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = in_world(3, tmp_path / "whole", partial(trained, steps=9, settings=settings))
    in_world(3, tmp_path / "cut", partial(trained, steps=7, settings=settings))
    again = in_world(3, tmp_path / "cut", partial(trained, steps=9, settings=settings))
    for (_, uninterrupted), (began, resumed) in zip(whole, again, strict=True):
        assert began == 5
        assert all(torch.equal(x, y) for x, y in zip(uninterrupted, resumed, strict=True))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_another_number_of_workers_has_what_the_servers_had(tmp_path: Path, size: int) -> None:
    (_, kept), *_ = in_world(3, tmp_path, partial(trained, steps=5, settings={}))
    for began, parameters in in_world(size, tmp_path, partial(trained, steps=5, settings={})):
        assert began == 5
        for x, y in zip(parameters, kept, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-14, atol=0.0)
