"""Ordinary loops x strategies: each loop is right, or refused before any update, or named within a few steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import torch

import quorate
from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family, loss_of, small_net
from tests.support.scene import Scene, Trainer


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


def validates(mode: Callable[[], AbstractContextManager[object]], cell: Cell) -> list[float]:
    """An evaluation in `mode` after each step; returns its losses and the parameters."""
    model, losses = small_net(), []
    optimizer = cell.distribute(torch.optim.Adam(model.parameters(), lr=0.01), model)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, cell.world.rank, step).backward()
        cell.step(optimizer)
        with mode(), cell.world.evaluate():
            assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
            losses.append(float(cell.world.mean(loss_of(model, cell.world.rank, 99))))
    optimizer.finish()
    return [*losses, *torch.nn.utils.parameters_to_vector(model.parameters()).tolist()]


@every_family()
def test_an_evaluation_in_inference_mode_is_that_without_gradients(strategy: str) -> None:
    right = ended(partial(validates, torch.no_grad), strategy).right()
    assert ended(partial(validates, torch.inference_mode), strategy).right() == right


def saves(mode: Callable[[], AbstractContextManager[object]], trainer: Trainer) -> None:
    """A checkpoint in `mode`."""
    with mode():
        quorate.save()


@every_family()
def test_a_checkpoint_in_inference_mode_is_that_without_gradients(strategy: str, tmp_path: Path) -> None:
    adam = partial(torch.optim.Adam, lr=0.01)
    scene = Scene(strategy, 2, make=adam, root=tmp_path / "first", after=partial(saves, torch.no_grad))
    other = scene.but(root=tmp_path / "second", after=partial(saves, torch.inference_mode))
    assert torch.equal(other.end(), scene.end())


def loads(where: str, cell: Cell) -> list[float]:
    """The state of an optimizer that stepped alone is loaded "before" distribute, "after" it, or in an "evaluation"."""
    model = small_net()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    alone = torch.optim.Adam([torch.zeros_like(p) for p in model.parameters()], lr=0.01)
    for p in alone.param_groups[0]["params"]:
        p.grad = torch.full_like(p, 0.1)
    alone.step()
    alone.step()
    if where == "before":
        adam.load_state_dict(alone.state_dict())
    optimizer = cell.distribute(adam, model)
    if where == "after":
        optimizer.load_state_dict(alone.state_dict())
    if where == "evaluation":
        with cell.world.evaluate():
            optimizer.load_state_dict(alone.state_dict())
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, cell.world.rank, step).backward()
        cell.step(optimizer)
    optimizer.finish()
    return torch.nn.utils.parameters_to_vector(model.parameters()).tolist()


@pytest.mark.parametrize("where", ["before", "evaluation"])
def test_servers_take_the_state_of_an_optimizer(where: str) -> None:
    right = ended(partial(loads, "before"), "all-reduce").right()
    for parameters in ended(partial(loads, where), "parameter-server").right():
        assert parameters == pytest.approx(right[0], abs=1e-6)


def test_servers_take_no_state_behind_their_back() -> None:
    ended(partial(loads, "after"), "parameter-server").refused("the state of Adam was replaced, as load_state_dict()")
