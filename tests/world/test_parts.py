"""Parts of gradients among real processes: in any order, on several channels, and tuned, the bits are the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import quorate
from quorate.launch.worker.world import World
from quorate.train import part_tuning
from tests.support.processes import run_real_world

SMALL = {"part_bytes": 2000, "first_part_bytes": 500}


def trained(settings: dict[str, Any], world: World) -> Tensor:
    """The parameters after 70 steps, in which a tuning ends."""
    part_tuning.STEPS = 60
    torch.manual_seed(0)
    model = nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(16, 16), nn.Tanh())])
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, **settings)
    data = torch.Generator().manual_seed(world.rank)
    for _ in range(70):
        optimizer.zero_grad()
        model(torch.randn(4, 16, generator=data)).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_bits_are_those_of_the_usual_parts() -> None:
    plain, *others = (
        run_real_world(2, partial(trained, settings))
        for settings in ({}, {**SMALL, "part_channels": 3, "part_order": "arrival"}, {**SMALL, "autotune": True})
    )
    for of_ranks in others:
        assert all(torch.equal(own, plain[0]) for own in of_ranks)
