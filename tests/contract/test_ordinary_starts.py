"""How ordinary loops start and end x strategies: random numbers, data, early ends, and strategies that nobody uses."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.data import random_split

from tests.support.ordinary_loops import Cell, ended, every_family

Drawn = tuple[float, float, float]


def drawn() -> Drawn:
    """One number of each default generator."""
    return torch.rand(1).item(), float(np.random.rand()), random.random()


def draws_around_distribute(cell: Cell, between: Callable[[], object] = lambda: None) -> tuple[Drawn, Drawn]:
    """Numbers drawn before the first `distribute` and after it; `between` runs before the former are drawn."""
    between()
    random_split(range(100), [80, 20])  # type: ignore[arg-type]
    np.random.randn(3)
    random.sample(range(10_000), 9_000)
    before = drawn()
    model = torch.nn.Linear(4, 1)
    cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    return before, drawn()


@every_family()
def test_workers_draw_alike_until_an_optimizer_is_distributed(strategy: str) -> None:
    (first, first_after), (second, second_after) = ended(draws_around_distribute, strategy, generators=True).right()
    assert first == second
    assert all(x != y for x, y in zip(first_after, second_after, strict=True))


@pytest.mark.parametrize(
    ("seed", "place"),
    [(lambda: torch.manual_seed(3), 0), (lambda: np.random.seed(3), 1), (lambda: random.seed(3), 2)],
    ids=["torch", "numpy", "python"],
)
def test_a_generator_that_the_script_has_seeded_goes_on(seed: Callable[[], object], place: int) -> None:
    def loop(cell: Cell) -> tuple[Drawn, Drawn]:
        return draws_around_distribute(cell, seed)

    (_, first), (_, second) = ended(loop, "all-reduce", generators=True).right()
    assert [x == y for x, y in zip(first, second, strict=True)] == [n == place for n in range(3)]


def test_a_seed_given_after_distribute_counts() -> None:
    def loop(cell: Cell) -> Drawn:
        draws_around_distribute(cell)
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        return drawn()

    first, second = ended(loop, "all-reduce", generators=True).right()
    assert first == second
    assert first[2] == random.Random(3).random()


def test_a_second_optimizer_seeds_nothing() -> None:
    def loop(cell: Cell) -> tuple[bool, bool]:
        draws_around_distribute(cell)
        states = torch.get_rng_state(), random.getstate()
        model = torch.nn.Linear(4, 1)
        torch.set_rng_state(states[0])
        cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
        return torch.equal(torch.get_rng_state(), states[0]), random.getstate() == states[1]

    assert ended(loop, "all-reduce", generators=True).right() == [(True, True)] * 2
