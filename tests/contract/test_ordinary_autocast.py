"""Autocast around a whole step: exchanges have the bits that they have without it, and the script's code keeps it."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.ordinary_loops import Cell, ended
from tests.support.scene import flat

STEPS = 4


def stepping(is_cast: bool, cell: Cell) -> list[float]:
    """Steps on gradients that are drawn, inside autocast or not."""
    torch.manual_seed(0)
    model = nn.Linear(40, 30)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(100 * step + cell.world.rank)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=draw)
        with torch.autocast("cpu", torch.bfloat16) if is_cast else nullcontext():
            cell.step(optimizer)
    optimizer.finish()
    return flat(model).tolist()


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("all-reduce", {"compress": "power-sgd"}),
        ("all-reduce", {"compress": "arc-top-k"}),
        ("all-reduce", {"compress": "demo"}),
        ("all-reduce", {"reduce": "krum", "f": 1}),
        ("all-reduce", {"reduce": "geometric-median"}),
        ("robust", {"reduce": "krum", "f": 1}),
    ],
)
def test_exchanges_are_computed_without_autocast(strategy: str, settings: dict[str, Any]) -> None:
    plain, cast = (ended(partial(stepping, is_cast), strategy, 5, **settings).right() for is_cast in (False, True))
    assert cast == plain


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum", "local-sgd", "d-psgd"])
def test_code_of_the_script_in_a_step_keeps_its_autocast(strategy: str) -> None:
    def loop(cell: Cell) -> list[bool]:
        model, seen = nn.Linear(4, 1), list[bool]()
        optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        optimizer.register_step_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
        for is_cast in (True, False):
            del seen[:]
            model(torch.ones(2, 4)).sum().backward()
            with torch.autocast("cpu", torch.bfloat16) if is_cast else nullcontext():
                cell.step(optimizer)
            assert set(seen) == {is_cast}
        optimizer.finish()
        return seen

    ended(loop, strategy).right()
