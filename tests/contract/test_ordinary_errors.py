"""Backward passes that raise an error, such as one for want of memory, which the script catches to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.ordinary_loops import Cell, ended
from tests.support.scene import flat, net

STEPS, AT = 6, 2
IN_PARTS = {"part_bytes": 600, "first_part_bytes": 200}
"""Settings with which the gradients of the last layers are sent before those of the first ones are there."""


class Fails(torch.autograd.Function):
    """The identity, whose backward pass fails if it is to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fails: bool) -> Tensor:
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.fails:
            raise MemoryError
        return grads[0], None


def loss_of(model: nn.Module, rank: int, step: int, *, fails: bool = False) -> Tensor:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * step + rank))
    layers = list(model.children())
    inner = Fails.apply(nn.Sequential(*layers[:3])(x), fails)  # type: ignore[no-untyped-call]
    return (nn.Sequential(*layers[3:])(inner) - x.sum(1, keepdim=True)).square().mean()


def failing(then: str) -> Callable[[Cell], list[float]]:
    """The backward pass of rank 1 fails at `AT`. It then "steps" without a gradient, goes into an evaluation
    ("evaluates") as the others do behind their step, goes on with its "next" batch, or "ends"."""

    def loop(cell: Cell) -> list[float]:
        model = net(4, 12, 12, 12, 1)
        optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
        for step in range(STEPS):
            optimizer.zero_grad()
            is_there = True
            try:
                loss_of(model, cell.world.rank, step, fails=step == AT and cell.world.rank == 1).backward()
            except MemoryError:
                optimizer.zero_grad()
                is_there = then == "steps"
                if then == "ends":
                    break
            if is_there:
                cell.step(optimizer)
            if then == "evaluates" and step == AT:
                with cell.world.evaluate():
                    pass
        optimizer.finish()
        return flat(model).tolist()

    return loop


def by_hand(batches_of_rank_1: list[int | None]) -> list[float]:
    """The parameters after steps on the mean of the gradients that there are, where rank 1 has these batches."""
    model = net(4, 12, 12, 12, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, other in enumerate(batches_of_rank_1):
        optimizer.zero_grad()
        losses = [loss_of(model, 0, step)] + ([] if other is None else [loss_of(model, 1, other)])
        torch.stack(losses).mean().backward()
        optimizer.step()
    return flat(model).tolist()


@pytest.mark.parametrize("settings", [{}, {"on_death": "continue"}], ids=["stop", "continue"])
@pytest.mark.parametrize(
    ("then", "batches"),
    [
        ("steps", [0, 1, None, 3, 4, 5]),
        ("evaluates", [0, 1, None, 3, 4, 5]),
        ("next", [0, 1, 3, 4, 5, None]),
        ("ends", [0, 1, None, None, None, None]),
    ],
)
def test_a_gradient_of_a_pass_that_failed_is_in_no_mean(
    then: str, batches: list[int | None], settings: dict[str, Any]
) -> None:
    first, second = ended(failing(then), "all-reduce", **IN_PARTS, **settings).right()
    assert first == second == pytest.approx(by_hand(batches), abs=1e-6)
