"""Buffers that have another shape on each worker, such as caches as long as the longest sequence."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quorate
from quorate.core.contracts import Wire
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.kept_trainings import in_world
from tests.support.ordinary_loops import Cell, ended, every_family
from tests.support.scene import flat


class Rotary(nn.Module):
    """A layer whose table is as long as the longest sequence that this worker has seen."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.persistent, self.longest = nn.Linear(4, 1), persistent, 0
        self.register_buffer("rates", torch.ones(4))
        self.grow(2)

    def grow(self, length: int) -> None:
        self.longest = length
        self.register_buffer("table", torch.linspace(0, 1, length), persistent=self.persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.longest:
            self.grow(len(x))
        out: torch.Tensor = self.layer(x * self.rates) * self.table[: len(x), None]
        return out


def grows_a_table(persistent: bool, cell: Cell) -> tuple[list[float], int, int]:
    """Sequences of rank 1 are longer; all meet in an evaluation."""
    model = Rotary(persistent)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step in range(6):
        optimizer.zero_grad()
        draw = torch.Generator().manual_seed(10 * step + cell.world.rank)
        model(torch.randn(2 + step + 3 * cell.world.rank, 4, generator=draw)).square().mean().backward()
        model.rates += 0.1 * cell.world.rank
        cell.step(optimizer)
        if step == 3:
            with cell.world.evaluate():
                model(torch.ones(2 + step, 4))
    optimizer.finish()
    return [*flat(model).tolist(), *model.rates.tolist()], model.longest, len(model.table)


@every_family()
def test_a_cache_that_grows_with_sequences_stays_each_workers_own(strategy: str) -> None:
    (first, *lengths), (second, *others) = ended(partial(grows_a_table, False), strategy).right()
    assert first == second
    assert (lengths, others) == ([7, 7], [10, 10])


@every_family("all-reduce")
def test_a_buffer_that_has_another_shape_on_other_workers_is_told_once(strategy: str) -> None:
    endings = ended(partial(grows_a_table, True), strategy)
    endings.right()
    endings.told_once("the buffer table has another shape on other workers")


def resumed(strategy: str, steps: int, world: quorate.World) -> tuple[int | None, list[float]]:
    """Where a training begins, and the parameters after so many steps; it saves after the third."""
    model = Rotary(False)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model, strategy)
    began = quorate.load()
    for step in range(began or 0, steps):
        optimizer.zero_grad()
        draw = torch.Generator().manual_seed(10 * step + world.rank)
        model(torch.randn(2 + step, 4, generator=draw)).square().mean().backward()
        optimizer.step()
        if step == 2:
            quorate.save()
    optimizer.finish()
    return began, flat(model).tolist()


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd", "d-psgd"])
def test_a_training_goes_on_where_a_cache_had_grown(strategy: str, tmp_path: Path) -> None:
    whole = in_world(2, tmp_path / "whole", partial(resumed, strategy, 6))
    in_world(2, tmp_path / "cut", partial(resumed, strategy, 3))
    again = in_world(2, tmp_path / "cut", partial(resumed, strategy, 6))
    assert [began for began, _ in again] == [3, 3]
    assert [end for _, end in again] == [end for _, end in whole]


def joined_late(wire: Wire) -> tuple[list[float], int, int]:
    """Two workers train from the beginning, and a third one joins."""
    if wire.is_newcomer:
        wire.clock.sleep(0.1)

    def task(world: quorate.World) -> tuple[list[float], int, int]:
        model = Rotary(False)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, "eager-majority")
        loader = quorate.loader(TensorDataset(torch.arange(192.0)), 2, share="dynamic")
        for _ in range(loader.epoch, 2):
            for step, (x,) in enumerate(loader):
                optimizer.zero_grad()
                model(x[:1].sigmoid().expand(3 + step % 9, 4)).square().mean().backward()
                world.wire.clock.sleep(0.01 * (1 + world.rank))
                optimizer.step()
            with world.evaluate():
                pass
        optimizer.finish()
        return flat(model).tolist(), model.longest, len(model.table)

    return joined(task)(wire)


def test_a_worker_joins_where_a_cache_has_grown() -> None:
    ends = VirtualWorld(2, joiners=1, seed=3, timeout=60.0).run(joined_late)
    assert ends[0][0] == ends[1][0] == ends[2][0]
    assert all(longest == length for _, longest, length in ends)
