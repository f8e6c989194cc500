"""Parameters that a script replaces in an optimizer, as where a model grows, and parameters of odd shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family, loss_of, small_net
from tests.support.scene import flat

STEPS = 6


def replacing(cell: Cell) -> list[float]:
    """One tensor is replaced by another one, with the same numbers, in the model and in the optimizer."""
    model = small_net()
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step in range(STEPS):
        if step == STEPS // 2:
            model[2].weight = nn.Parameter(model[2].weight.detach().clone())
            optimizer.param_groups[0]["params"][2] = model[2].weight
        optimizer.zero_grad()
        loss_of(model, cell.world.rank, step).backward()
        cell.step(optimizer)
    optimizer.finish()
    return flat(model).tolist()


def by_hand() -> list[float]:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([loss_of(model, rank, step) for rank in range(2)]).mean().backward()
        optimizer.step()
    return flat(model).tolist()


@every_family()
def test_a_parameter_that_replaces_another_one_is_trained_by_all(strategy: str) -> None:
    first, second = ended(replacing, strategy).right()
    assert first == second


def test_a_parameter_that_replaces_another_one_is_trained_on_the_mean() -> None:
    first, _ = ended(replacing, "all-reduce").right()
    assert first == pytest.approx(by_hand(), abs=1e-6)


def growing(cell: Cell) -> list[float]:
    """The numbers of a hidden layer are written anew, with two rows more."""
    model = small_net()
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == STEPS // 2:
            first, last = model[0], model[2]
            first.weight.data = torch.cat([first.weight.data, torch.zeros(2, 4)])
            first.bias.data = torch.cat([first.bias.data, torch.zeros(2)])
            last.weight.data = torch.cat([last.weight.data, torch.ones(1, 2)], 1)
        loss_of(model, cell.world.rank, step).backward()
        cell.step(optimizer)
    optimizer.finish()
    return flat(model).tolist()


@every_family("eager-majority")
def test_a_parameter_whose_shape_changes_is_refused(strategy: str) -> None:
    endings = ended(growing, strategy)
    endings.named(r"has the shape \(.*\) now, and had .* when it was distributed", at=STEPS // 2, within=STEPS // 2)


@pytest.mark.parametrize("strategy", ["diloco", "ad-psgd", "choco-sgd", "easgd"])
def test_a_parameter_whose_shape_changes_is_refused_at_the_next_exchange(strategy: str) -> None:
    endings = ended(growing, strategy)
    endings.named(r"has the shape \(.*\) now, and had .* when it was distributed", at=STEPS // 2, within=STEPS // 2)


def removing(place: int) -> Callable[[Cell], list[float]]:
    """One of two parameter groups, with unequal rates, is removed from the optimizer; its layer stays as it is."""

    def loop(cell: Cell) -> list[float]:
        model = small_net()
        optimizer = cell.distribute(two_groups(model), model)
        for step in range(STEPS):
            if step == STEPS // 2:
                del optimizer.param_groups[place]
            optimizer.zero_grad()
            loss_of(model, cell.world.rank, step).backward()
            cell.step(optimizer)
        optimizer.finish()
        return flat(model).tolist()

    return loop


def two_groups(model: nn.Sequential) -> torch.optim.Optimizer:
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters(), "lr": 0.02}]
    return torch.optim.SGD(groups, momentum=0.5)


@every_family()
@pytest.mark.parametrize("place", [0, 1])
def test_a_parameter_group_is_removed_on_all(place: int, strategy: str) -> None:
    first, second = ended(removing(place), strategy).right()
    assert first == second


@pytest.mark.parametrize("strategy", ["all-reduce", "parameter-server"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_layer_without_its_parameter_group_stays_as_it_is(place: int, strategy: str) -> None:
    model = small_net()
    optimizer = two_groups(model)
    for step in range(STEPS):
        if step == STEPS // 2:
            del optimizer.param_groups[place]
        model.zero_grad()
        torch.stack([loss_of(model, rank, step) for rank in range(2)]).mean().backward()
        optimizer.step()
    first, _ = ended(removing(place), strategy).right()
    assert first == pytest.approx(flat(model).tolist(), abs=1e-6)


def converting(cell: Cell) -> list[float]:
    """The model is converted to float64 in the middle."""
    model = small_net()
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == STEPS // 2:
            model.double()
        loss_of(InItsDtype(model), cell.world.rank, step).backward()
        cell.step(optimizer)
    optimizer.finish()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


class InItsDtype(nn.Module):
    """A model with inputs in the dtype of its parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.to(next(self.model.parameters()).dtype))


@every_family("eager-majority", "hogwild")
def test_a_model_is_converted_to_another_dtype_on_all(strategy: str) -> None:
    first, second = ended(converting, strategy).right()
    assert first == second
    assert first != torch.tensor(first, dtype=torch.float32).tolist()


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("hogwild", "Convert the model before quorate.distribute"), ("eager-majority", "has written into the parameters")],
)
def test_a_model_whose_copies_are_not_alike_keeps_its_dtype(strategy: str, words: str) -> None:
    ended(converting, strategy).named(words, at=STEPS // 2, within=1)


def test_means_of_a_converted_model_have_its_dtype() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == STEPS // 2:
            model.double()
        for rank in range(2):
            (loss_of(InItsDtype(model), rank, step) / 2).backward()
        optimizer.step()
    first, second = ended_for_real(converting, "all-reduce").right()
    assert first == second == ended(converting, "all-reduce").right()[0]
    wanted = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    assert max(abs(a - b) for a, b in zip(first, wanted, strict=True)) < 1e-13
