"""Optimizers of other packages x strategies: counts in groups, switches, methods beside `step`, wrappers, pairs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family, loss_of, small_net
from tests.support.other_optimizers import Counting, Falling, Prodigal, ScheduleFree, numbers_of

STEPS = 8
Make = Callable[[Any], torch.optim.Optimizer]


def flat(model: torch.nn.Module) -> list[float]:
    """All parameters."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).tolist()


def made_by(make: Make, cell: Cell, steps: int = STEPS) -> tuple[list[float], dict[str, Any]]:
    """A plain loop of the optimizer that `make` makes of parameters; returns parameters and options."""
    model = small_net()
    optimizer = cell.distribute(make(model.parameters()), model)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, cell.world.rank, step).backward()
        cell.step(optimizer)
    optimizer.finish()
    return flat(model), numbers_of(optimizer)


def by_hand(make: Make, steps: int = STEPS, size: int = 2) -> tuple[list[float], dict[str, Any]]:
    """The same in one process, on the mean of all workers' gradients."""
    model = small_net()
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            (loss_of(model, rank, step) / size).backward()
        optimizer.step()
    return flat(model), numbers_of(optimizer)


def falling(params: Any) -> Falling:
    return Falling(params, lr=0.1)


def falling_in_a_hook(params: Any) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(params, lr=0.1)

    def lowers(one: torch.optim.Optimizer, *_: Any) -> None:
        for group in one.param_groups:
            group["lr"] *= 0.7

    optimizer.register_step_post_hook(lowers)
    return optimizer


def trained_schedule_free(params: Any) -> ScheduleFree:
    optimizer = ScheduleFree(params)
    optimizer.train()
    return optimizer


OWN_OPTIONS: list[Make] = [Counting, falling, falling_in_a_hook, Prodigal, trained_schedule_free]


@pytest.mark.parametrize("make", OWN_OPTIONS)
@pytest.mark.parametrize(("strategy", "settings"), [("all-reduce", {}), ("quorum", {"wait_for": "all"})])
def test_what_a_step_writes_into_its_groups_is_that_of_one_process(
    strategy: str, settings: dict[str, Any], make: Make
) -> None:
    numbers, options = by_hand(make)
    for parameters, found in ended(partial(made_by, make), strategy, **settings).right():
        assert parameters == pytest.approx(numbers, abs=1e-6)
        assert found == pytest.approx(options, abs=1e-6)


@pytest.mark.parametrize("make", OWN_OPTIONS)
@every_family("all-reduce", "d-psgd", "local-sgd")
def test_what_steps_write_stays_and_is_equal_on_all_workers(strategy: str, make: Make) -> None:
    (first, options), (second, others) = ended(partial(made_by, make), strategy).right()
    begun = numbers_of(make(small_net().parameters()))
    assert first == second
    assert options == others
    _, by_one = by_hand(make, steps=1)
    for key in (key for key, x in by_one.items() if x != begun[key]):
        assert options[key] != begun[key], key


@pytest.mark.parametrize("strategy", ["local-sgd", "d-psgd"])
def test_each_worker_counts_its_own_steps_where_replicas_differ(strategy: str) -> None:
    for _, options in ended(partial(made_by, Counting), strategy).right():
        assert options["k"] == STEPS


def with_scheduler(make: Make, cell: Cell) -> tuple[list[float], list[Any]]:
    """A scheduler beside counts of the optimizer's own."""
    model = small_net()
    optimizer = cell.distribute(make(model.parameters()), model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    rates = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, cell.world.rank, step).backward()
        cell.step(optimizer)
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    optimizer.finish()
    return flat(model), [numbers_of(optimizer)["k"], rates]


def test_a_scheduler_goes_on_beside_counts() -> None:
    (first, about), (second, _) = ended(partial(with_scheduler, Counting), "quorum", wait_for="all").right()
    assert first == second
    assert about[0] == STEPS
    assert about[1] == pytest.approx([0.1 * 0.9 ** (step + 1) for step in range(STEPS)])


def rate_set_again(cell: Cell) -> tuple[list[float], float]:
    """The script sets the rate that steps lower, twice to the same number."""
    model = small_net()
    optimizer = cell.distribute(falling(model.parameters()), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, cell.world.rank, step).backward()
        if step in (3, 6):
            optimizer.param_groups[0]["lr"] = 0.1
        cell.step(optimizer)
    optimizer.finish()
    return flat(model), optimizer.param_groups[0]["lr"]


def test_a_rate_that_steps_lower_and_the_script_sets_is_both() -> None:
    (first, rate), (second, other) = ended(rate_set_again, "quorum", wait_for="all").right()
    assert first == second
    assert rate == other == pytest.approx(0.1 * 0.7**2)


@pytest.mark.parametrize("strategy", ["eager-majority", "parameter-server"])
def test_counts_stay_in_processes(strategy: str) -> None:
    (first, options), (second, others) = ended_for_real(partial(made_by, Prodigal), strategy).right()
    assert first == second
    assert options == others
    assert options["k"] > 0
