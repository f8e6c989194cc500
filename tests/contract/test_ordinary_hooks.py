"""Hooks between a backward pass and its step: they clear gradients, or take them away and put them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.every_strategy import NAMES, optimizer_of
from tests.support.ordinary_loops import Cell, ended, every_family, loss_of, small_net
from tests.support.scene import flat

STEPS = 5
Clears = Callable[[nn.Module, Any], None]


def none_by_hand(model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        p.grad = None


def to_none(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()


def to_zeros(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=False)


def clearing(clears: Clears, *, in_hook: bool) -> Callable[[Cell], list[float]]:
    """Gradients are cleared behind each update, by a hook of steps or in the loop."""

    def loop(cell: Cell) -> list[float]:
        model = small_net()
        optimizer = cell.distribute(optimizer_of(cell.strategy, model.parameters(), lr=0.05), model)
        if in_hook:
            optimizer.register_step_post_hook(lambda *_: clears(model, optimizer))
        for step in range(STEPS):
            loss_of(model, cell.world.rank, step).backward()
            cell.step(optimizer)
            if not in_hook:
                clears(model, optimizer)
        optimizer.finish()
        return flat(model).tolist()

    return loop


@pytest.mark.parametrize("strategy", sorted({*NAMES} - {"hogwild"}))
def test_gradients_that_a_hook_of_steps_clears_are_cleared(strategy: str) -> None:
    in_loop, in_hook = (ended(clearing(to_none, in_hook=place), strategy).right() for place in (False, True))
    assert in_hook == in_loop


@pytest.mark.parametrize("clears", [none_by_hand, to_zeros])
@every_family()
def test_a_hook_clears_gradients_in_any_way(strategy: str, clears: Clears) -> None:
    in_loop, in_hook = (ended(clearing(clears, in_hook=place), strategy).right() for place in (False, True))
    assert in_hook == in_loop


class ClearingSGD(torch.optim.SGD):
    """An optimizer that frees each gradient in its step."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.zero_grad()
        return loss


@every_family()
def test_gradients_that_a_step_clears_are_cleared(strategy: str) -> None:
    def loop(kind: Any) -> Callable[[Cell], list[float]]:
        def trains(cell: Cell) -> list[float]:
            model = small_net()
            optimizer = cell.distribute(kind(model.parameters(), lr=0.05), model)
            for step in range(STEPS):
                loss_of(model, cell.world.rank, step).backward()
                cell.step(optimizer)
                if kind is torch.optim.SGD:
                    optimizer.zero_grad()
            optimizer.finish()
            return flat(model).tolist()

        return trains

    plain, clearing = (ended(loop(kind), strategy).right() for kind in (torch.optim.SGD, ClearingSGD))
    assert clearing == plain


def putting_back(*, in_hook: bool, some: int | None = None) -> Callable[[Cell], list[float]]:
    """A hook takes gradients out of `.grad` as they are computed; a hook of steps, or the loop, puts them back."""

    def loop(cell: Cell) -> list[float]:
        model, taken = small_net(), dict[nn.Parameter, torch.Tensor]()
        optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)

        def takes(p: Any) -> None:
            taken[p], p.grad = p.grad, None

        def puts_back(*_: object) -> None:
            for p, gradient in taken.items():
                p.grad = gradient

        for p in list(model.parameters())[:some]:
            p.register_post_accumulate_grad_hook(takes)
        if in_hook:
            optimizer.register_step_pre_hook(puts_back)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, cell.world.rank, step).backward()
            if not in_hook:
                puts_back()
            cell.step(optimizer)
        optimizer.finish()
        return flat(model).tolist()

    return loop


@pytest.mark.parametrize("some", [None, 1])
@pytest.mark.parametrize("strategy", ["all-reduce", "quorum", "eager-solo", "eager-majority"])
def test_gradients_that_a_hook_of_steps_puts_back_are_refused(strategy: str, some: int | None) -> None:
    endings = ended(putting_back(in_hook=True, some=some), strategy)
    endings.refused(r"0\.weight\.grad is None .*register_step_pre_hook\(\) .*too late")


@pytest.mark.parametrize("strategy", ["local-sgd", "d-psgd", "parameter-server"])
def test_a_hook_of_steps_may_put_back_gradients_where_workers_step_on_their_own(strategy: str) -> None:
    in_loop, in_hook = (ended(putting_back(in_hook=place), strategy).right() for place in (False, True))
    assert in_hook == in_loop


def sharpness_aware(*, copies: bool) -> Callable[[Cell], list[float]]:
    """SAM by hand: weights are moved along the gradient for a second pass, and moved back."""

    def loop(cell: Cell) -> list[float]:
        model = small_net()
        optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
        for step in range(STEPS):
            loss_of(model, cell.world.rank, step).backward()
            with torch.no_grad():
                old = [p.clone() for p in model.parameters()]
                moves = [0.05 * p.grad for p in model.parameters() if p.grad is not None]
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.add_(move)
            optimizer.zero_grad()
            loss_of(model, cell.world.rank, step).backward()
            with torch.no_grad():
                for p, before, move in zip(model.parameters(), old, moves, strict=True):
                    p.copy_(before) if copies else p.sub_(move)
            cell.step(optimizer)
            optimizer.zero_grad()
        optimizer.finish()
        return flat(model).tolist()

    return loop


@pytest.mark.parametrize("strategy", ["quorum", "eager-solo", "eager-majority"])
def test_weights_that_are_moved_back_by_a_difference_are_refused(strategy: str) -> None:
    ended(sharpness_aware(copies=False), strategy).refused(r"as SAM does.*clone")


@every_family()
def test_weights_that_are_copied_back_leave_equal_replicas(strategy: str) -> None:
    first, second = ended(sharpness_aware(copies=True), strategy).right()
    assert first == second


def halve(p: Any) -> None:
    p.grad.mul_(0.5)


def scaling(*, is_late: bool) -> Callable[[Cell], list[float]]:
    """A hook, registered before `distribute` or after it, scales each gradient; a mean has several parts."""

    def loop(cell: Cell) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 1))
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = cell.distribute(sgd, model) if is_late else sgd
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(halve)
        optimizer = optimizer if is_late else cell.distribute(sgd, model)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, cell.world.rank, step).backward()
            cell.step(optimizer)
        optimizer.finish()
        return flat(model).tolist()

    return loop


@every_family()
def test_a_hook_that_scales_gradients_counts_wherever_it_is_registered(strategy: str) -> None:
    late, early = (ended(scaling(is_late=is_late), strategy).right() for is_late in (True, False))
    assert late == early
