"""Optimizers of other packages x strategies: counts in groups, switches, methods beside `step`, wrappers, pairs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch

from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family, loss_of, small_net
from tests.support.other_optimizers import (
    Around,
    Counting,
    Falling,
    Lookahead,
    OfMatrices,
    Prodigal,
    ScheduleFree,
    WithHessian,
    numbers_of,
)
from tests.support.scene import Trainer

STEPS = 8
Make = Callable[[Any], torch.optim.Optimizer]


def flat(model: torch.nn.Module) -> list[float]:
    """All parameters."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).tolist()


def made_by(make: Make, cell: Cell, steps: int = STEPS) -> tuple[list[float], dict[str, Any]]:
    """A plain loop of the optimizer that `make` makes of parameters; returns parameters and options."""
    trainer = cell.train(steps, make=make)
    return flat(trainer.model), numbers_of(trainer.optimizer)


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

    def begin(trainer: Trainer) -> None:
        trainer.schedule = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.9)

    def after(trainer: Trainer) -> None:
        trainer.schedule.step()
        trainer.seen.append(trainer.rate)

    trainer = cell.train(STEPS, make=make, begin=begin, after=after)
    return flat(trainer.model), [numbers_of(trainer.optimizer)["k"], trainer.seen]


def test_a_scheduler_goes_on_beside_counts() -> None:
    (first, about), (second, _) = ended(partial(with_scheduler, Counting), "quorum", wait_for="all").right()
    assert first == second
    assert about[0] == STEPS
    assert about[1] == pytest.approx([0.1 * 0.9 ** (step + 1) for step in range(STEPS)])


def rate_set_again(cell: Cell) -> tuple[list[float], float]:
    """The script sets the rate that steps lower, twice to the same number."""

    def between(trainer: Trainer) -> None:
        if trainer.step in (3, 6):
            trainer.optimizer.param_groups[0]["lr"] = 0.1

    trainer = cell.train(STEPS, make=falling, between=between)
    return flat(trainer.model), trainer.rate


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


def show(trainer: Trainer) -> None:
    """Look at the weights that are to be evaluated."""
    trainer.optimizer.eval()
    trainer.seen.append(flat(trainer.model))
    trainer.optimizer.train()


def evaluated(how: str, cell: Cell) -> tuple[list[float], dict[str, Any], list[list[float]]]:
    """Schedule-free weights, shown every third step: on all workers, on one, or in a pause of all."""

    def after(trainer: Trainer) -> None:
        if trainer.step % 3 == 0 and how == "in a pause":
            with trainer.world.evaluate():
                show(trainer)
        elif trainer.step % 3 == 0 and (how == "on all" or trainer.rank == 0):
            show(trainer)

    trainer = cell.train(STEPS, make=trained_schedule_free, after=after)
    return flat(trainer.model), numbers_of(trainer.optimizer), trainer.seen


@pytest.mark.parametrize("how", ["on all", "on one", "in a pause"])
@every_family("parameter-server")
def test_weights_are_shown_and_come_back_to_the_bit(strategy: str, how: str) -> None:
    (first, options, shown), (second, _, _) = ended(partial(evaluated, how), strategy, compare_every=1).right()
    assert first == second
    assert options["train_mode"]
    assert shown[-1] != first
    if strategy == "all-reduce" and how == "on one":
        assert first == ended(partial(made_by, trained_schedule_free), strategy).right()[0][0]


def test_servers_show_weights_in_a_pause_and_say_so_elsewhere() -> None:
    (first, options, shown), (second, _, _) = ended(partial(evaluated, "in a pause"), "parameter-server").right()
    assert first == second
    assert options["k"] > 0
    assert shown[-1] != first
    ended(partial(evaluated, "on all"), "parameter-server").named("inside `with world.evaluate", at=3, within=0)


def shown_before_a_pause(cell: Cell) -> tuple[list[float], list[float]]:
    """`eval()` first, then a pause in which what is pending is applied, then the end without `train()`."""
    trainer = cell.trainer(make=trained_schedule_free).train(5)
    trainer.optimizer.eval()
    with cell.world.evaluate():
        shown = flat(trainer.model)
    trainer.optimizer.train()
    trainer.train(STEPS).optimizer.eval()
    return flat(trainer.finish().model), shown


@every_family("parameter-server")
def test_a_pause_is_of_the_weights_that_are_trained(strategy: str) -> None:
    (first, shown), (second, also_shown) = ended(shown_before_a_pause, strategy).right()
    assert first == pytest.approx(second)
    if strategy != "d-psgd" and strategy != "local-sgd":
        assert shown == also_shown


def stepped_while_shown(cell: Cell) -> None:
    cell.train(1, make=trained_schedule_free, begin=lambda trainer: trainer.optimizer.eval())


@pytest.mark.parametrize("strategy", ["eager-majority", "parameter-server"])
def test_a_step_in_the_weights_to_be_evaluated_is_refused(strategy: str) -> None:
    ended(stepped_while_shown, strategy).refused(r"step\(\) was called after eval\(\) of ScheduleFree")


def with_hessian(cell: Cell) -> list[float]:
    """`update_hessian()` of its own backward pass every second step, and an argument of `step`."""

    def before(trainer: Trainer) -> None:
        if trainer.step % 2 == 0:
            trainer.optimizer.zero_grad()
            loss_of(trainer.model, trainer.rank, 100 + trainer.step).backward()
            trainer.optimizer.update_hessian()

    return flat(cell.train(STEPS, make=WithHessian, before=before).model)


def test_methods_beside_step_see_gradients_that_all_agreed_on() -> None:
    model = small_net()
    optimizer = WithHessian(model.parameters())
    for step in range(STEPS):
        for place in [100 + step] * (step % 2 == 0) + [step]:
            optimizer.zero_grad()
            sum((loss_of(model, rank, place) / 2 for rank in range(2)), torch.zeros(())).backward()
            if place >= 100:
                optimizer.update_hessian()
        optimizer.step()
    for parameters in ended(with_hessian, "all-reduce").right():
        assert parameters == pytest.approx(flat(model), abs=1e-6)


@pytest.mark.parametrize("strategy", ["local-sgd", "d-psgd"])
def test_methods_beside_step_are_each_workers_own_where_replicas_differ(strategy: str) -> None:
    first, second = ended(with_hessian, strategy).right()
    assert first == pytest.approx(second)


@pytest.mark.parametrize("strategy", ["eager-majority", "quorum", "parameter-server"])
def test_methods_beside_step_that_would_part_replicas_are_refused(strategy: str) -> None:
    ended(with_hessian, strategy).refused(r"update_hessian\(\) of WithHessian has written")


def with_arguments(cell: Cell) -> list[float]:
    model = small_net()
    optimizer = cell.distribute(WithHessian(model.parameters()), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, cell.world.rank, step).backward()
        optimizer.step(bs=2) if step % 2 else optimizer.step(None, 2)
        cell.counted += 1
    optimizer.finish()
    return flat(model)


@every_family("eager-majority", "parameter-server")
def test_arguments_of_step_reach_the_plain_optimizer(strategy: str) -> None:
    first, second = ended(with_arguments, strategy).right()
    assert first == pytest.approx(second)


@pytest.mark.parametrize("strategy", ["eager-majority", "parameter-server"])
def test_arguments_of_step_are_refused_where_steps_are_of_several_workers(strategy: str) -> None:
    ended(with_arguments, strategy).refused(r"step\(\) of WithHessian was given arguments besides a closure")


def patched(params: Any) -> torch.optim.SGD:
    """Its step is made twice."""
    optimizer = torch.optim.SGD(params, lr=0.02)
    once = optimizer.step
    optimizer.step = lambda closure=None: (once(), once())  # type: ignore[method-assign,assignment,func-returns-value]
    return optimizer


def patched_and_scheduled(params: Any) -> torch.optim.SGD:
    """A scheduler has wrapped a step that the script had put there."""
    optimizer = torch.optim.SGD(params, lr=0.02)
    once = optimizer.step

    def step(self: Any, closure: Any = None) -> None:
        once()
        once()

    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    return optimizer


def scheduled(params: Any) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(params, lr=0.02)
    torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    return optimizer


@pytest.mark.parametrize("make", [patched, patched_and_scheduled, scheduled])
@pytest.mark.parametrize(("strategy", "settings"), [("all-reduce", {}), ("quorum", {"wait_for": "all"})])
def test_a_step_put_on_the_optimizer_is_the_one_that_is_made(
    strategy: str, settings: dict[str, Any], make: Make
) -> None:
    numbers, _ = by_hand(make)
    for parameters, _ in ended(partial(made_by, make), strategy, **settings).right():
        assert parameters == pytest.approx(numbers, abs=1e-6)


def test_servers_refuse_a_step_put_on_the_optimizer() -> None:
    ended(partial(made_by, patched), "parameter-server").refused("a step was put on this SGD itself")


def of_matrices(cell: Cell) -> list[float]:
    """Only the matrices of a model are trained."""
    make: Any = lambda ps: OfMatrices([p for p in ps if p.ndim == 2])  # noqa: E731
    return flat(cell.train(STEPS, make=make).model)


@every_family()
def test_an_optimizer_that_asserts_matrices_is_not_tried_on_vectors_alone(strategy: str) -> None:
    first, second = ended(of_matrices, strategy).right()
    assert first == pytest.approx(second)


@pytest.mark.parametrize("strategy", ["local-sgd", "d-psgd"])
def test_moments_of_an_optimizer_of_matrices_are_averaged(strategy: str) -> None:
    first, second = ended(of_matrices, strategy, momentum="average").right()
    assert first == pytest.approx(second)


@pytest.mark.parametrize("make", [trained_schedule_free, Counting])
@pytest.mark.parametrize("strategy", ["local-sgd", "d-psgd"])
def test_moments_of_what_has_switches_and_counts_are_averaged(strategy: str, make: Make) -> None:
    (first, _), (second, _) = ended(partial(made_by, make), strategy, momentum="average").right()
    assert first == pytest.approx(second)


def around_adam(params: Any) -> Lookahead:
    return Lookahead(torch.optim.Adam(params, lr=0.05))


def around_momentum(params: Any) -> Around:
    return Around(params, torch.optim.SGD, lr=0.05, momentum=0.9)


@pytest.mark.parametrize("make", [around_adam, around_momentum])
@pytest.mark.parametrize("strategy", ["local-sgd", "d-psgd"])
def test_moments_inside_a_wrapper_are_not_averaged(strategy: str, make: Make) -> None:
    loop = partial(made_by, make)
    ended(loop, strategy, momentum="average").refused("cannot be averaged, as a trial step .* failed")


@pytest.mark.parametrize("make", [around_adam, around_momentum])
@pytest.mark.parametrize(("strategy", "settings"), [("all-reduce", {}), ("quorum", {"wait_for": "all"})])
def test_a_wrapper_steps_as_in_one_process(strategy: str, settings: dict[str, Any], make: Make) -> None:
    numbers, _ = by_hand(make)
    for parameters, _ in ended(partial(made_by, make), strategy, **settings).right():
        assert parameters == pytest.approx(numbers, abs=1e-6)


@pytest.mark.parametrize("make", [around_adam, around_momentum])
@every_family("all-reduce", "parameter-server")
def test_a_wrapper_leaves_equal_replicas(strategy: str, make: Make) -> None:
    (first, _), (second, _) = ended(partial(made_by, make), strategy).right()
    assert first == pytest.approx(second)


@pytest.mark.parametrize("make", [around_adam, around_momentum])
def test_servers_refuse_a_wrapper(make: Make) -> None:
    ended(partial(made_by, make), "parameter-server").refused("is around another optimizer")
