"""Ordinary loops x models in shards: each loop is as in one process, or is named before a step that would differ."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from tests.support.ordinary_loops import Cell, ended_for_real

WIDTH = 144
"""A layer of this width is a block of its own."""
STEPS = 3


def numbers(rank: int, step: int) -> Tensor:
    """A worker's batch."""
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))


class Deep(nn.Module):
    """Equal blocks, which each worker calls as `order(rank, step)` says."""

    def __init__(self, order: Callable[[int, int], Iterable[int]] = lambda rank, step: range(3)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        self.head, self.order = nn.Linear(WIDTH, 1), order

    def forward(self, x: Tensor, rank: int, step: int) -> Tensor:
        for number in self.order(rank, step):
            x = x + self.blocks[number](x)
        return self.head(x)


def squares(model: Any, rank: int, step: int) -> Tensor:
    """The loss."""
    return (model(numbers(rank, step), rank, step) - 1).square().mean()


def whole(p: Any) -> Tensor:
    """All of a tensor that may be in pieces."""
    gathered: Tensor = p.full_tensor() if hasattr(p, "full_tensor") else p
    return gathered.detach().clone()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4, weight_decay=0.1)


def by_hand(model: Any, loss: Callable[[Any, int, int], Tensor] = squares, size: int = 2) -> list[Tensor]:
    """Parameters of `model` after a training in this process on the mean of all workers' gradients."""
    optimizer = adamw(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(loss(model, rank, step) / size for rank in range(size)).backward()  # type: ignore[union-attr]
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def in_shards(
    cell: Cell, model: Any, zero: Any, loss: Callable[[Any, int, int], Tensor] = squares, **chosen: Any
) -> Tensor:
    """The same in shards; the greatest difference from `by_hand`."""
    wanted = by_hand(copy.deepcopy(model), loss)
    model = quorate.parallelize(model, zero=zero, **chosen)
    optimizer = cell.distribute(adamw(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, cell.world.rank, step).backward()
        cell.step(optimizer)
    optimizer.finish()
    return furthest([whole(p) for p in model.parameters()], wanted)


def furthest(some: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    return torch.stack(
        [(a - b).abs().max() if a.numel() else torch.zeros(()) for a, b in zip(some, others, strict=True)]
    ).max()


def each(cell: Cell, cases: Sequence[Callable[[Cell], Any]]) -> list[Any]:
    """Several loops in one world."""
    torch.set_num_threads(1)
    return [case(cell) for case in cases]


def check(*cases: Callable[[Cell], Any], at_most: float = 1e-5) -> None:
    """Fails unless every case is as near to one process on every worker."""
    for worker in ended_for_real(partial(each, cases=cases), "all-reduce").right():
        assert not [(case, far) for case, far in zip(cases, worker, strict=True) if not far <= at_most]


def another_order(rank: int, step: int) -> Iterable[int]:
    return range(3) if rank == 0 or step == 0 else reversed(range(3))


def another_one_skipped(rank: int, step: int) -> Iterable[int]:
    return [n for n in range(3) if n != rank]


@pytest.mark.parametrize(
    ("zero", "order", "within"), [(3, another_order, 1), (2, another_one_skipped, 0)], ids=["order", "skipped"]
)
def test_workers_that_use_other_blocks_are_named(zero: Any, order: Any, within: int) -> None:
    end = ended_for_real(partial(in_shards, model=Deep(order), zero=zero), "all-reduce")
    end.named(
        r"rank 0 .*all_gather of blocks\.\d,.* rank 1 .*all_gather of blocks\.\d,.*quorate\.whole", at=within, within=0
    )


class Towers(nn.Module):
    """Two small layers of one shape, of which each worker's batch needs one; and one that nobody needs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(WIDTH, 4)
        self.left, self.right, self.idle = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor, rank: int, step: int) -> Tensor:
        tower = self.left if rank == step % 2 else self.right
        return tower(self.trunk(x))


def test_parameters_that_some_workers_use() -> None:
    check(*(partial(in_shards, model=Towers(), zero=zero) for zero in (1, 3)))
