"""Unequal loops of the workers of a script for DDP, under the class that it gets: `join()`, and where they evaluate."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.data.consumption import Consumed
from quorate.launch.takeover.wrapper import DistributedDataParallel, count_examples
from quorate.launch.worker.world import World
from quorate.train.chosen import Chosen
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZE, RATE = 3, 0.1


def wrapped(strategy: str) -> tuple[Any, Any]:
    current.here().context(Chosen).strategy_name = strategy
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def step(model: Any, optimizer: Any, inputs: Tensor) -> None:
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()


def test_a_library_may_ask_for_agreement_after_the_forward_pass() -> None:
    """As Accelerate's `trigger_sync_in_backward` does, and Lightning in manual optimization."""

    def task(world: World) -> Tensor:
        model, optimizer = wrapped("all-reduce")
        with model.no_sync():
            loss = model(torch.full((1, 2), world.rank + 1.0)).sum()
        model.reducer.prepare_for_backward([])
        loss.backward()
        gradient: Tensor = model.module.weight.grad.clone()
        optimizer.step()
        return gradient

    for gradient in VirtualWorld(SIZE, seed=3).run(joined(task)):
        torch.testing.assert_close(gradient, torch.full((1, 2), 2.0))


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd", "eager-majority"])
def test_a_closure_without_a_loss_changes_nothing(strategy: str) -> None:
    """Lightning steps with one in manual optimization, after the backward pass."""

    def task(world: World) -> list[Tensor]:
        weights = []
        for arguments in ((), (lambda: None,)):
            model, optimizer = wrapped(strategy)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.full((1, 2), world.rank + 1.0)).sum().backward()
                optimizer.step(*arguments)
            optimizer.finish()
            weights.append(model.module.weight.detach().clone())
        return weights

    for without, with_closure in VirtualWorld(SIZE, seed=3).run(joined(task)):
        assert torch.equal(without, with_closure)


def test_a_wrapper_is_saved_and_copied() -> None:
    def task(world: World) -> list[Tensor]:
        model, optimizer = wrapped("local-sgd")
        step(model, optimizer, torch.ones(1, 2))
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copies = [torch.load(file, weights_only=False), copy.deepcopy(model)]
        inputs = torch.tensor([[1.0, -2.0]])
        return [other(inputs).detach() - model.module(inputs).detach() for other in copies]

    for differences in VirtualWorld(SIZE, seed=3).run(joined(task)):
        assert differences == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ([torch.ones(3, 2)], 3),
        ([torch.tensor(1.0), 5, torch.ones(4)], 4),
        ([[torch.ones(6, 2), torch.ones(6)], 0], 6),
        ([{"words": torch.ones(7, 2)}], 7),
        ([("a", "b"), None], None),
    ],
)
def test_the_examples_of_a_step_are_the_rows_of_its_first_tensor(arguments: list[Any], rows: int | None) -> None:
    consumed = Consumed()
    count_examples(consumed, arguments)
    assert consumed.examples == rows


@pytest.mark.parametrize("divides_by_all", [True, False])
def test_a_mean_in_join_is_that_of_torch(divides_by_all: bool) -> None:
    """Rank r has r batches, and rank 0 has none; the gradient of a batch on rank r is r + 1."""

    def task(world: World) -> Tensor:
        model, optimizer = wrapped("all-reduce")
        with model.join(divide_by_initial_world_size=divides_by_all):
            for _ in range(world.rank):
                step(model, optimizer, torch.full((1, 2), world.rank + 1.0))
        step(model, optimizer, torch.ones(1, 2))
        weight: Tensor = model.module.weight.detach().clone()
        return weight

    torch.manual_seed(2)
    gradients = ((2.0 + 3.0) / (3 if divides_by_all else 2), 3.0 / (3 if divides_by_all else 1), 1.0)
    expected = nn.Linear(2, 1, bias=False).weight.detach() - RATE * sum(gradients)
    for weight in VirtualWorld(SIZE, seed=3).run(joined(task)):
        torch.testing.assert_close(weight, expected)


@pytest.mark.parametrize("strategy", ["eager-majority", "local-sgd", "d-psgd"])
@pytest.mark.parametrize("unequal", ["forward passes", "join"])
def test_unequal_loops_evaluate_together_after_it(
    strategy: str, unequal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def task(world: World) -> list[Tensor]:
        model, optimizer = wrapped(strategy)
        step(model, optimizer, torch.ones(1, 2))
        if unequal == "join":
            with model.join():
                for _ in range(1 + 2 * world.rank):
                    step(model, optimizer, torch.full((1, 2), world.rank + 1.0))
            current.here().wire.clock.sleep(float(world.rank))
        states, clock = [], current.here().wire.clock
        for _ in range(2):
            for number in range(2):
                step(model, optimizer, torch.full((1, 2), world.rank + 1.0 + number))
            model.eval()
            states.append(model.module.weight.detach().clone())
            model.train()
            if unequal == "forward passes" and world.is_first:
                model(torch.ones(1, 2))  # a loss to print
                clock.sleep(5.0)  # so that others are the first at the next evaluation
        return states

    workers = VirtualWorld(SIZE, seed=3).run(joined(task))
    assert "evaluates its own replica" not in capsys.readouterr().err
    for states in zip(*workers, strict=True):
        assert all(torch.equal(state, states[0]) for state in states)
