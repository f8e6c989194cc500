"""Second derivatives x strategies: penalties on gradients, Hessian estimates in a step, batch norms of all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from tests.support.ordinary_loops import FAMILIES, Cell, ended, ended_for_real, every_family, loss_of, small_net
from tests.support.scene import Hook, Trainer, flat, nothing

STEPS, SIZE = 5, 2
Loss = Callable[[nn.Module, int, int], Tensor]
STEPS_AS_ONE: list[tuple[str, dict[str, Any]]] = [("all-reduce", {}), ("quorum", {"wait_for": "all"})]


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * step + rank))


def with_penalty_on_gradients(model: nn.Module, rank: int, step: int) -> Tensor:
    loss = loss_of(model, rank, step)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + 0.1 * torch.stack([g.square().sum() for g in gradients]).sum()


def with_penalty_on_inputs(model: nn.Module, rank: int, step: int) -> Tensor:
    x = batch(rank, step).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return loss_of(model, rank, step) + 0.1 * (gradient.norm(dim=1) - 1).square().mean()


def trained_on(loss: Loss, cell: Cell) -> list[float]:
    return cell.train(STEPS, loss=lambda t: loss(t.model, t.rank, t.step)).parameters.tolist()


def by_hand(loss: Loss) -> list[float]:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([loss(model, rank, step) for rank in range(SIZE)]).mean().backward()
        optimizer.step()
    return flat(model).tolist()


@pytest.mark.parametrize("loss", [with_penalty_on_gradients, with_penalty_on_inputs])
@pytest.mark.parametrize(("strategy", "settings"), STEPS_AS_ONE)
def test_a_penalty_in_the_loss_is_that_of_one_process(strategy: str, settings: dict[str, Any], loss: Loss) -> None:
    for parameters in ended(partial(trained_on, loss), strategy, **settings).right():
        assert parameters == pytest.approx(by_hand(loss), abs=1e-6)


@pytest.mark.parametrize("loss", [with_penalty_on_gradients, with_penalty_on_inputs])
@every_family("all-reduce")
def test_a_penalty_in_the_loss_leaves_equal_replicas(strategy: str, loss: Loss) -> None:
    first, second = ended(partial(trained_on, loss), strategy).right()
    assert first == pytest.approx(second)


def penalty_of(model: nn.Module) -> Tensor:
    return 0.1 * torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum()


def with_graph(cell: Cell, between: Hook = nothing, **chosen: Any) -> list[float]:
    """`backward(create_graph=True)` in each step."""

    def graph(trainer: Trainer) -> None:
        loss_of(trainer.model, trainer.rank, trainer.step).backward(create_graph=True)
        between(trainer)

    return cell.train(STEPS, loss=lambda trainer: None, between=graph, **chosen).parameters.tolist()


def penalised_grad(cell: Cell) -> list[float]:
    """Then a penalty on `.grad`, and a backward pass of it."""
    return with_graph(cell, lambda trainer: penalty_of(trainer.model).backward())


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_penalty_on_grad_is_that_of_the_joined_batch_where_it_is_the_mean() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([loss_of(model, rank, step) for rank in range(SIZE)]).mean().backward(create_graph=True)
        penalty_of(model).backward()
        optimizer.step()
    for parameters in ended(penalised_grad, "all-reduce").right():
        assert parameters == pytest.approx(flat(model).tolist(), abs=1e-6)


@pytest.mark.filterwarnings("ignore:Using backward")
@every_family("all-reduce")
def test_a_penalty_on_grad_is_of_each_workers_own_batch_elsewhere(strategy: str) -> None:
    first, second = ended(penalised_grad, strategy).right()
    assert first == pytest.approx(second)
    if strategy == "parameter-server":
        assert first == pytest.approx(by_hand(with_penalty_on_gradients), abs=1e-6)


class AdaHessian(torch.optim.Optimizer):
    """Hutchinson's estimate of the Hessian's diagonal, in `step`."""

    def __init__(self, params: Iterable[Any], lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})
        self.draws = torch.Generator().manual_seed(5)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        taking = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        signs = [torch.randint(0, 2, p.shape, generator=self.draws) * 2.0 - 1 for p in taking]
        products = torch.autograd.grad([p.grad for p in taking], taking, grad_outputs=signs)
        with torch.no_grad():
            for p, sign, product in zip(taking, signs, products, strict=True):
                kept = self.state[p].setdefault("hessian", torch.zeros_like(p))
                kept.mul_(0.9).add_((sign * product).abs(), alpha=0.1)
                p.addcdiv_(p.grad, kept + 0.1, value=-self.param_groups[0]["lr"])


def with_hessian(cell: Cell) -> list[float]:
    return with_graph(cell, make=AdaHessian)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("strategy", ["local-sgd", "d-psgd"])
def test_a_step_that_differentiates_its_own_gradients_is_made(strategy: str) -> None:
    first, second = ended(with_hessian, strategy).right()
    assert first == pytest.approx(second)


@pytest.mark.filterwarnings("ignore:Using backward")
@every_family("local-sgd", "d-psgd")
def test_a_step_that_differentiates_the_mean_is_refused(strategy: str) -> None:
    ended(with_hessian, strategy).refused(r"step\(\) of AdaHessian differentiates the gradients")


def critic(cell: Cell | None, steps: int = STEPS) -> list[float]:
    """A WGAN-GP critic with batch norm over all workers (without a cell: of the joined batch, in one process)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05)
    if cell is not None:
        optimizer = cell.distribute(optimizer, model)
        quorate.sync_batch_norm(model)
    for step in range(steps):
        ranks = range(SIZE) if cell is None else [cell.world.rank]
        real = torch.cat([batch(rank, step) for rank in ranks]).double()
        false = torch.cat([batch(rank, 100 + step) for rank in ranks]).double()
        between = ((real + false) / 2).requires_grad_()
        (gradient,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        loss = model(false).mean() - model(real).mean() + 10 * (gradient.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step() if cell is None else cell.step(optimizer)
    if cell is not None:
        optimizer.finish()
    return flat(model).tolist()


def test_a_gradient_penalty_through_batch_norms_of_all_workers_is_that_of_one_process() -> None:
    right = critic(None)
    for parameters in ended(critic, "all-reduce").right():
        assert parameters == pytest.approx(right, abs=1e-9)


def test_a_gradient_penalty_through_batch_norms_in_processes() -> None:
    right = critic(None)
    for parameters in ended_for_real(critic, "all-reduce").right():
        assert parameters == pytest.approx(right, abs=1e-9)


@pytest.mark.parametrize("strategy", [name for name in FAMILIES if name not in ("all-reduce", "local-sgd")])
def test_batch_norms_of_all_workers_are_refused_where_they_do_not_all_meet(strategy: str) -> None:
    ended(critic, strategy).refused("sync_batch_norm lets workers wait for each other")
