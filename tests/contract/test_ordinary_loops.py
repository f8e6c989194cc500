"""Ordinary loops x strategies: each loop is right, or refused before any update, or named within a few steps."""

from __future__ import annotations

import pytest
import torch

from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family, loss_of, small_net


def plain(cell: Cell) -> list[float]:
    """Nothing out of the ordinary; returns the parameters."""
    model = small_net()
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step in range(12):
        optimizer.zero_grad()
        loss_of(model, cell.world.rank, step).backward()
        cell.step(optimizer)
    optimizer.finish()
    return torch.nn.utils.parameters_to_vector(model.parameters()).tolist()


@every_family()
def test_a_plain_loop_leaves_equal_replicas(strategy: str) -> None:
    first, second = ended(plain, strategy).right()
    assert first == second


@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority"])
def test_a_plain_loop_leaves_equal_replicas_in_processes(strategy: str) -> None:
    first, second = ended_for_real(plain, strategy).right()
    assert first == second
