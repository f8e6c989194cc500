"""Updates without locks on parameters that all workers have in common, in the virtual world, which has such as well."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.core.errors import ConfigurationError, PeerFailed
from quorate.hogwild.common_parameters import check_shareable
from quorate.launch.worker.world import World
from quorate.wire.virtual.network import Network
from tests.support.scene import Scene, Trainer, note, ones, ranked, regression, virtual, zeros
from tests.support.sparse_regression import UNSEEN, Problem, batch, linear

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


def scene(size: int = 2, **chosen: Any) -> Scene:
    return Scene("hogwild", size, **{"model": zeros(), "rate": 1.0, "loss": ones, **chosen})


def problem_loss(trainer: Trainer) -> Tensor:
    return Problem.drawn().loss(trainer.model, batch(trainer.step, trainer.rank, trainer.world.size))


def in_common(size: int, kind: str, pauses: Callable[[], float] = lambda: 0.01, steps: int = STEPS) -> Any:
    """The tables that workers of unequal speed end with, and their losses."""
    fields: dict[str, Any] = {"model": lambda: linear(sparse=kind in SPARSE), "make": OPTIMIZERS[kind]}
    late = lambda trainer: trainer.clock.sleep(pauses())  # noqa: E731 - others update between the gradient and its step
    training = scene(size, loss=problem_loss, between=late, steps=steps // size, **fields)
    return training.run(lambda t: (t.model.weight.detach().clone(), Problem.drawn().loss(t.model).item()))


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
    ((table, _),) = in_common(1, kind, steps=FEW)
    assert torch.equal(table, serial(kind, FEW)[0])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_sparse_convex_problem_is_solved_as_by_one_worker(size: int) -> None:
    """As many updates in all, at the same rate: within 2% of the serial loss, whoever is slow."""
    draw = random.Random(size)
    found = in_common(size, "sgd", lambda: 0.005 + 0.01 * draw.random())
    begin = Problem.drawn().loss(linear()).item()
    wanted = serial("sgd")[1]
    assert wanted < 0.5 * begin
    for table, loss in found:
        assert torch.equal(table, found[0][0])
        assert loss == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("kind", SPARSE)
def test_rows_that_no_example_touches_stay_as_they_were(kind: str) -> None:
    for table, _ in in_common(3, kind, steps=FEW):
        assert torch.equal(table[UNSEEN:], linear().weight[UNSEEN:])
        assert not torch.equal(table[:UNSEEN], linear().weight[:UNSEEN])


def test_every_update_counts_once() -> None:
    """The law of its own, of plain SGD where no addition is torn: the end is the beginning less all gradients."""

    def begin(trainer: Trainer) -> None:
        trainer.begin = trainer.model.weight.detach().clone()

    def between(trainer: Trainer) -> None:
        before = trainer.model.weight.detach().clone()
        trainer.clock.sleep(0.01 + 0.003 * trainer.rank)
        trainer.seen.append((trainer.model.weight.grad.clone(), not torch.equal(before, trainer.model.weight)))

    def look(trainer: Trainer) -> tuple[Tensor, Tensor, int]:
        gradients, others = zip(*trainer.seen, strict=True)
        return trainer.begin - trainer.model.weight.detach(), sum(gradients), sum(others)

    fields: Any = {"model": lambda: nn.Linear(4, 1).double(), "rate": 0.05, "loss": regression, "seed": "rank"}
    found = scene(3, steps=(20, 25, 30), begin=begin, between=between, **fields).run(look)
    assert torch.equal(found[0][0], found[1][0])
    assert found[1][2] > 5, "nobody's parameters moved while it computed"
    begins_alike = found[0][0] - 0.05 * sum(total for _, total, _ in found)
    assert float(begins_alike.abs().max()) < 1e-12


def test_each_optimizer_keeps_its_own_momenta() -> None:
    def make(ps: Any) -> torch.optim.Optimizer:
        (p,) = ps
        plain = torch.optim.AdamW([p], lr=0.01)
        p.sum().backward()
        plain.step()  # there is state before
        plain.objects = [p]
        return plain

    def after(trainer: Trainer) -> None:
        assert all(p is q for p, q in zip(trainer.optimizer.objects, trainer.model.parameters(), strict=True))
        trainer.seen.append(trainer.optimizer.state[trainer.model.weight]["exp_avg"].clone())

    hooks: Any = {"between": lambda trainer: trainer.clock.sleep(0.01), "after": after}
    one, other = scene(model=zeros(2), make=make, loss=ranked, steps=3, **hooks).run(lambda trainer: trainer.seen)
    for step in range(3):  # beside the first, of before, gradients of 1, and of 2
        fades = 0.9 ** (step + 1)
        assert torch.allclose(one[step], torch.full((1, 2), 0.1 * fades + (1 - fades)))
        assert torch.allclose(other[step], torch.full((1, 2), 0.1 * fades + 2 * (1 - fades)))


def test_accumulation_clipping_and_schedules_are_of_each_worker() -> None:
    def begin(trainer: Trainer) -> None:
        trainer.schedule = torch.optim.lr_scheduler.StepLR(trainer.optimizer, step_size=1, gamma=0.5)

    def between(trainer: Trainer) -> None:
        norm = nn.utils.clip_grad_norm_(trainer.model.parameters(), 2**0.5)
        assert float(norm) == pytest.approx(4 * 2**0.5)
        trainer.seen.append(trainer.rate)

    hooks: Any = {"begin": begin, "between": between, "after": lambda trainer: trainer.schedule.step()}
    loss = lambda trainer: 2.0 * trainer.model.weight.sum()  # noqa: E731
    training = scene(model=lambda: zeros(2)().double(), passes=2, loss=loss, steps=3, **hooks)
    for weight, rates in training.run(lambda trainer: (trainer.model.weight.detach(), trainer.seen)):
        assert rates == [1.0, 0.5, 0.25]
        assert torch.allclose(weight, torch.full((1, 2), -2 * 1.75, dtype=torch.float64), atol=1e-4)


@pytest.mark.parametrize("in_place", [True, False])
def test_what_all_write_in_an_evaluation_is_written_once(in_place: bool) -> None:
    def after(trainer: Trainer) -> None:
        with trainer.world.evaluate(), torch.no_grad():
            if in_place:
                trainer.model.weight.mul_(3.0)
            else:
                trainer.model.weight.data = trainer.model.weight * 3.0
            trainer.seen.append(trainer.model.weight.item())
        trainer.world.barrier()

    training = scene(3, model=zeros(value=2.0), rate=0.0, steps=4, after=after)
    assert training.run(lambda trainer: trainer.seen) == [[6.0, 18.0, 54.0, 162.0]] * 3


def test_a_parameter_that_gets_memory_of_the_script_returns_to_the_common_memory() -> None:
    def between(trainer: Trainer) -> None:
        nn.utils.vector_to_parameters(trainer.model.weight.detach().flatten().clone(), trainer.model.parameters())

    assert scene(steps=6, between=between).run(lambda trainer: trainer.model.weight.item()) == [-12.0, -12.0]


def test_a_parameter_that_gets_another_dtype_is_refused() -> None:
    converts = lambda trainer: trainer.step == 3 and trainer.model.double()  # noqa: E731
    with pytest.raises(ConfigurationError, match=r"\(torch.float64\) now, and had .* \(torch.float32\)"):
        scene(steps=6, loss=lambda trainer: trainer.model.weight.sum(), before=converts).run()


def test_an_evaluation_stands_still_while_others_go_on() -> None:
    def rest(trainer: Trainer) -> None:
        trainer.seen.append(trainer.model.weight.item())
        trainer.clock.sleep(5.0 * trainer.rank)
        trainer.seen.append(trainer.model.weight.item())

    for trainer in scene(rests=[3], rest=rest).run():
        assert (trainer.seen, trainer.model.weight.item()) == ([-6.0, -6.0], -12.0)


def test_parameters_that_come_and_freeze_are_in_common_too() -> None:
    def before(trainer: Trainer) -> None:
        if trainer.step == 3:
            trainer.optimizer.add_param_group({"params": list(trainer.model[1].parameters())})
        if trainer.step == 6:
            trainer.model[0].requires_grad_(False)

    def after(trainer: Trainer) -> None:
        assert len({p.untyped_storage().data_ptr() for p in trainer.model[0].parameters()}) == 1

    def last(trainer: Trainer) -> None:
        with trainer.world.evaluate():
            note(trainer)

    fields: Any = {"model": lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), "seed": "rank", "steps": 9}
    fields["make"] = lambda ps: torch.optim.SGD([*ps][:2], lr=0.1)
    trainers = scene(3, before=before, after=after, last=last, **fields).run()
    for trainer in trainers:
        assert torch.equal(trainer.parameters, trainer.seen[0]) and torch.equal(trainer.seen[0], trainers[0].seen[0])


def test_where_a_death_is_the_end_of_all_nobody_goes_on() -> None:
    lived, crashed, other = scene(3, steps=200, dies={1: 5}, on_death="stop").outcomes()
    assert crashed.is_crashed
    assert isinstance(lived.error, PeerFailed) and isinstance(other.error, PeerFailed)
    assert lived.seconds < 0.5


def test_in_the_virtual_world_workers_take_turns_by_steps() -> None:
    order: list[int] = []

    training = scene(steps=20, between=lambda trainer: order.append(trainer.rank))
    training.run()
    first, turns = list(order), sum(one != other for one, other in itertools.pairwise(order))
    assert turns > 8
    order.clear()
    training.run()
    assert order == first


def test_a_sparse_gradient_that_is_not_finite_is_left_out() -> None:
    loss = lambda t: problem_loss(t) * (math.nan if (t.rank, t.step) == (1, 2) else 1.0)  # noqa: E731
    assert scene(model=linear, rate=0.1, loss=loss, steps=4, on_nonfinite="skip").end().isfinite().all()


def test_across_hosts_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the workers are on 2 hosts. Start all of them on one host"):
        scene(3, world={"network": Network(hosts=(0, 0, 1))}).run()


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
        scene(model=lambda: model).trainer(world)

    with pytest.raises(ConfigurationError, match="rank 1 in another order than on rank 0"):
        virtual(2, task)


def test_two_optimizers_on_the_same_numbers_are_refused() -> None:
    def task(world: World) -> None:
        whole = torch.zeros(4)
        model = nn.ParameterList([nn.Parameter(whole[:2]), nn.Parameter(whole[2:])])
        for p in model:
            scene(model=lambda: model, make=lambda ps, p=p: torch.optim.SGD([p], lr=0.1)).trainer(world)

    with pytest.raises(ConfigurationError, match="share memory"):
        virtual(2, task)
