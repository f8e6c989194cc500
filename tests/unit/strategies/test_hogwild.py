"""Updates without locks on parameters that all workers have in common, in the virtual world, which has such as well."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, PeerFailed
from quorate.hogwild.common_parameters import check_shareable
from quorate.launch.worker.world import World
from quorate.wire import current
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.sparse_regression import UNSEEN, Problem, batch, linear

T = TypeVar("T")
STEPS = 1280
"""Of all workers together, where they are to come to the end."""
FEW = 192
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.2),
    "sparse-adam": lambda p: torch.optim.SparseAdam(p, lr=0.02),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.2),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02),
}
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch's Adagrad
SPARSE = ("sgd", "sparse-adam", "adagrad")
"""Those that take sparse gradients."""


def run(size: int, task: Callable[[World], T], *, seed: int = 0, **settings: Any) -> list[T]:
    return VirtualWorld(size, seed=seed, timeout=120.0, **settings).run(joined(task))


def distributed(plain: torch.optim.Optimizer, model: nn.Module, **settings: Any) -> Any:
    return quorate.distribute(plain, model, "hogwild", with_one_worker="algorithm", **settings)


def in_common(
    world: World, kind: str, pauses: Callable[[int], float] = lambda rank: 0.01, steps: int = STEPS
) -> tuple[Tensor, float]:
    """The table that workers of unequal speed end with, and its loss."""
    problem, model = Problem.drawn(), linear(sparse=kind in SPARSE, seed=world.rank)
    optimizer = distributed(OPTIMIZERS[kind](model.parameters()), model)
    for step in range(steps // world.size):
        optimizer.zero_grad()
        problem.loss(model, batch(step, world.rank, world.size)).backward()
        world.wire.clock.sleep(pauses(world.rank))  # others update between the gradient and its step
        optimizer.step()
    optimizer.finish()
    return model.weight.detach().clone(), problem.loss(model).item()


def serial(kind: str, steps: int = STEPS) -> tuple[Tensor, float]:
    problem, model = Problem.drawn(), linear(sparse=kind in SPARSE)
    optimizer = OPTIMIZERS[kind](model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        problem.loss(model, batch(step, 0, 1)).backward()
        optimizer.step()
    return model.weight.detach(), problem.loss(model).item()


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_one_worker_is_the_plain_optimizer_bit_for_bit(kind: str) -> None:
    ((table, _),) = run(1, partial(in_common, kind=kind, steps=FEW))
    assert torch.equal(table, serial(kind, FEW)[0])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_sparse_convex_problem_is_solved_as_by_one_worker(size: int) -> None:
    """As many updates in all, at the same rate: within 2% of the serial loss, whoever is slow."""
    draw = random.Random(size)
    found = run(size, partial(in_common, kind="sgd", pauses=lambda rank: 0.005 + 0.01 * draw.random()))
    begin = Problem.drawn().loss(linear()).item()
    wanted = serial("sgd")[1]
    assert wanted < 0.5 * begin
    for table, loss in found:
        assert torch.equal(table, found[0][0])
        assert loss == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("kind", SPARSE)
def test_rows_that_no_example_touches_stay_as_they_were(kind: str) -> None:
    for table, _ in run(3, partial(in_common, kind=kind, steps=FEW)):
        assert torch.equal(table[UNSEEN:], linear().weight[UNSEEN:])
        assert not torch.equal(table[:UNSEEN], linear().weight[:UNSEEN])


def test_every_update_counts_once() -> None:
    """The law of its own, of plain SGD where no addition is torn: the end is the beginning less all gradients."""

    def task(world: World) -> tuple[Tensor, Tensor, int]:
        torch.manual_seed(world.rank)
        model = nn.Linear(4, 1).double()
        optimizer = distributed(torch.optim.SGD(model.parameters(), lr=0.05), model)
        begin, total, others = model.weight.detach().clone(), torch.zeros(1, 4, dtype=torch.float64), 0
        for step in range(20 + 5 * world.rank):
            x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + world.rank))
            optimizer.zero_grad()
            before = model.weight.detach().clone()
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            world.wire.clock.sleep(0.01 + 0.003 * world.rank)
            others += not torch.equal(before, model.weight)
            assert model.weight.grad is not None
            total += model.weight.grad
            optimizer.step()
        optimizer.finish()
        return begin - model.weight.detach(), total, others

    found = run(3, task)
    assert torch.equal(found[0][0], found[1][0])
    assert found[1][2] > 5, "nobody's parameters moved while it computed"
    begins_alike = found[0][0] - 0.05 * sum(total for _, total, _ in found)
    assert float(begins_alike.abs().max()) < 1e-12


def test_each_optimizer_keeps_its_own_momenta() -> None:
    def task(world: World) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(2, 1, bias=False)
        plain = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.ones(1, 2)).sum().backward()
        plain.step()  # there is state before
        objects = list(model.parameters())
        optimizer = distributed(plain, model)
        assert all(p is q for p, q in zip(objects, model.parameters(), strict=True))
        kept = []
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.ones(1, 2)) * (1.0 + world.rank)).sum().backward()
            world.wire.clock.sleep(0.01)
            optimizer.step()
            kept.append(optimizer.state[model.weight]["exp_avg"].clone())
        return kept, model.weight.detach().clone()

    (one, _), (other, _) = run(2, task)
    for step in range(3):  # beside the first, of before, gradients of 1, and of 2
        fades = 0.9 ** (step + 1)
        assert torch.allclose(one[step], torch.full((1, 2), 0.1 * fades + (1 - fades)))
        assert torch.allclose(other[step], torch.full((1, 2), 0.1 * fades + 2 * (1 - fades)))


def test_accumulation_clipping_and_schedules_are_of_each_worker() -> None:
    def task(world: World) -> tuple[Tensor, list[float]]:
        model = nn.Linear(2, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        optimizer = distributed(torch.optim.SGD(model.parameters(), lr=1.0), model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        rates = []
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.accumulate():
                model(torch.full((1, 2), 3.0, dtype=torch.float64)).sum().backward()
            model(torch.full((1, 2), 1.0, dtype=torch.float64)).sum().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 2**0.5)
            assert float(norm) == pytest.approx(4 * 2**0.5)
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        optimizer.finish()
        return model.weight.detach().clone(), rates

    for weight, rates in run(2, task):
        assert rates == [1.0, 0.5, 0.25]
        assert torch.allclose(weight, torch.full((1, 2), -2 * 1.75, dtype=torch.float64), atol=1e-4)


def test_what_all_write_in_an_evaluation_is_written_once() -> None:
    def task(world: World) -> list[float]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 2.0)
        optimizer = distributed(torch.optim.SGD(model.parameters(), lr=0.0), model)
        seen = []
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            with world.evaluate(), torch.no_grad():
                model.weight.mul_(3.0)
                seen.append(model.weight.item())
            world.barrier()
        optimizer.finish()
        return seen

    assert run(3, task) == [[6.0, 18.0, 54.0, 162.0]] * 3


def test_an_evaluation_stands_still_while_others_go_on() -> None:
    def task(world: World) -> tuple[float, float]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = distributed(torch.optim.SGD(model.parameters(), lr=1.0), model)
        for step in range(6):
            if step == 3:
                with world.evaluate():
                    first = model.weight.item()
                    world.wire.clock.sleep(5.0 * world.rank)
                    last = model.weight.item()
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        optimizer.finish()
        assert model.weight.item() == -12.0
        return first, last

    assert run(2, task) == [(-6.0, -6.0)] * 2


def test_parameters_that_come_and_freeze_are_in_common_too() -> None:
    def task(world: World) -> list[Tensor]:
        torch.manual_seed(world.rank)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        optimizer = distributed(torch.optim.SGD(model[0].parameters(), lr=0.1), model)
        for step in range(9):
            if step == 3:
                optimizer.add_param_group({"params": list(model[1].parameters())})
            if step == 6:
                model[0].requires_grad_(False)
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            assert len({p.untyped_storage().data_ptr() for p in model[0].parameters()}) == 1
        with world.evaluate():
            found = [p.detach().clone() for p in model.parameters()]
        optimizer.finish()
        assert all(torch.equal(p, x) for p, x in zip(model.parameters(), found, strict=True))
        return found

    ends = run(3, task)
    assert all(torch.equal(x, y) for end in ends for x, y in zip(end, ends[0], strict=True))


def test_where_a_death_is_the_end_of_all_nobody_goes_on() -> None:
    def live(wire: Wire) -> None:
        current.enter(wire, thread_only=True)
        try:
            world = quorate.join()
            model = nn.Linear(1, 1)
            optimizer = distributed(torch.optim.SGD(model.parameters(), lr=0.1), model, on_death="stop")
            for step in range(200):
                if (world.rank, step) == (1, 5):
                    wire.crash()
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
        finally:
            current.forget(thread_only=True)

    lived, crashed, other = VirtualWorld(3, timeout=20.0).outcomes(live)
    assert crashed.is_crashed
    assert isinstance(lived.error, PeerFailed) and isinstance(other.error, PeerFailed)
    assert lived.seconds < 0.5


def test_in_the_virtual_world_workers_take_turns_by_steps() -> None:
    order: list[int] = []

    def task(world: World) -> None:
        model = nn.Linear(1, 1)
        optimizer = distributed(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            order.append(world.rank)
            optimizer.step()

    run(2, task)
    first, turns = list(order), sum(one != other for one, other in itertools.pairwise(order))
    assert turns > 8
    order.clear()
    run(2, task)
    assert order == first


def test_a_sparse_gradient_that_is_not_finite_is_left_out() -> None:
    def task(world: World) -> Tensor:
        problem, model = Problem.drawn(), linear()
        optimizer = distributed(torch.optim.SGD(model.parameters(), lr=0.1), model, on_nonfinite="skip")
        for step in range(4):
            optimizer.zero_grad()
            factor = math.nan if (world.rank, step) == (1, 2) else 1.0
            (factor * problem.loss(model, batch(step, world.rank, 2))).backward()
            optimizer.step()
        optimizer.finish()
        return model.weight.detach().clone()

    assert all(bool(torch.isfinite(table).all()) for table in run(2, task))


def begins(world: World, model: nn.Module | None = None) -> None:
    model = model or nn.Linear(2, 1)
    distributed(torch.optim.SGD(model.parameters(), lr=0.1), model)


def test_across_hosts_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the workers are on 2 hosts; start all of them on one host"):
        run(3, begins, network=Network(hosts=(0, 0, 1)))


def test_what_is_not_in_memory_of_the_cpu_is_refused() -> None:
    model = nn.Linear(2, 1)
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda:0"), layout=torch.strided)
    replica: Any = SimpleNamespace(model=model, every=[model.weight, on_gpu])
    wire: Any = SimpleNamespace(size=2, host_of=lambda rank: 0)
    with pytest.raises(ConfigurationError, match="a parameter is on cuda:0; leave the model on the CPU"):
        check_shareable(replica, wire, "hogwild")


def test_models_that_are_laid_out_differently_are_refused() -> None:
    def task(world: World) -> None:
        model = nn.Linear(2, 2)
        if world.rank == 1:
            model.weight.data = model.weight.data.t().contiguous().t()
        begins(world, model)

    with pytest.raises(ConfigurationError, match="rank 1 in another order than on rank 0"):
        run(2, task)


def test_two_optimizers_on_the_same_numbers_are_refused() -> None:
    def task(world: World) -> None:
        whole = torch.zeros(4)
        model = nn.ParameterList([nn.Parameter(whole[:2]), nn.Parameter(whole[2:])])
        distributed(torch.optim.SGD([model[0]], lr=0.1), model)
        distributed(torch.optim.SGD([model[1]], lr=0.1), model)

    with pytest.raises(ConfigurationError, match="share memory"):
        run(2, task)
