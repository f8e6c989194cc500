"""A change that one worker alone makes is named within a few steps: options, weights, optimizer state, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quorate
from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family, loss_of, small_net
from tests.support.scene import Hook, Trainer, flat

STEPS, AT = 14, 3


def changed(cell: Cell, *, adam: bool = False, steps: int = STEPS, **hooks: Any) -> list[float]:
    """A plain loop with a change `between` backward pass and step, or `after` the step; returns the parameters."""
    kind: Any = partial(torch.optim.Adam, lr=0.01) if adam else partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    return cell.train(steps, make=kind, **hooks).parameters.tolist()


def on_one_rank(change: Callable[[nn.Module, Any], None], *, once: bool = False) -> Hook:
    """Between backward pass and step from step `AT` on, or `once` behind it."""

    def does(trainer: Trainer) -> None:
        if trainer.rank == 1 and (trainer.step == AT + 1 if once else trainer.step >= AT):
            change(trainer.model, trainer.optimizer)

    return does


def on_all(change: Callable[[nn.Module, Any], None]) -> Hook:
    return lambda trainer: change(trainer.model, trainer.optimizer)


def halve_rate(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


def set_decay(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.1


def load_weights(model: nn.Module, optimizer: Any) -> None:
    model.load_state_dict({name: torch.full_like(x, 0.3) for name, x in model.state_dict().items()})


def write_data(model: nn.Module, optimizer: Any) -> None:
    next(model.parameters()).data.add_(0.1)


def load_state(model: nn.Module, optimizer: Any) -> None:
    kept = optimizer.state_dict()
    for state in kept["state"].values():
        state.update({key: 1.5 * x for key, x in state.items() if isinstance(x, torch.Tensor) and x.dim()})
    optimizer.load_state_dict(kept)


def clip(model: nn.Module, optimizer: Any) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def clip_data(model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.clamp_(-0.01, 0.01)


def forget_gradient(model: nn.Module, optimizer: Any) -> None:
    next(model.parameters()).grad = None


@pytest.mark.parametrize(("change", "option"), [(halve_rate, "lr"), (set_decay, "weight_decay")])
def test_an_option_of_one_rank_is_named_before_the_next_update(change: Any, option: str) -> None:
    endings = ended(partial(changed, after=on_one_rank(change, once=True)), "all-reduce", 3)
    endings.named(f"{option} of parameter group 0 is .* on ranks 0 and 2 and .* on rank 1", at=AT + 1, within=1)


def test_a_rate_in_a_tensor_that_is_written_in_place_is_signed_again() -> None:
    def halve(model: nn.Module, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"].mul_(0.5)

    make: Any = lambda ps: torch.optim.SGD(ps, lr=torch.tensor(0.05))  # noqa: E731
    loop = lambda cell: cell.train(STEPS, make=make, after=on_one_rank(halve, once=True)).step  # noqa: E731
    ended(loop, "all-reduce").named("lr of parameter group 0 is", at=AT + 1, within=1)


def test_a_scheduler_on_the_own_loss_is_named() -> None:
    def begin(trainer: Trainer) -> None:
        trainer.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(trainer.optimizer, patience=0)

    def after(trainer: Trainer) -> None:
        trainer.schedule.step(trainer.losses[-1] + 100.0 * (trainer.step - 1) * trainer.rank)

    ended(lambda cell: cell.train(STEPS, begin=begin, after=after).step, "all-reduce").named(
        r"lr of parameter group 0 .*world\.mean\(loss\)", at=2, within=2
    )


def test_a_rate_of_one_rank_is_named_at_the_next_mean_of_local_steps() -> None:
    endings = ended(partial(changed, after=on_one_rank(halve_rate, once=True)), "local-sgd", sync_every=4)
    endings.named("lr of parameter group 0 is", at=AT, within=9)


@pytest.mark.parametrize("strategy", ["d-psgd", "ad-psgd"])
def test_a_rate_of_one_rank_is_told_at_the_end_of_gossip(strategy: str) -> None:
    endings = ended(partial(changed, after=on_one_rank(halve_rate, once=True)), strategy)
    endings.right()
    endings.told_once("lr of parameter group 0 is")


@pytest.mark.parametrize("strategy", ["eager-majority", "quorum"])
def test_rounds_apply_the_options_of_one_worker(strategy: str) -> None:
    first, second = ended(partial(changed, after=on_one_rank(halve_rate, once=True)), strategy).right()
    assert first == second


@every_family()
def test_a_rate_that_all_change_alike_is_no_change_of_one(strategy: str) -> None:
    endings = ended(partial(changed, after=on_all(halve_rate)), strategy)
    endings.right()
    assert "quorate: the optimizer's options" not in endings.told


@pytest.mark.parametrize(("change", "tensor"), [(load_weights, r"0\.weight"), (write_data, r"0\.weight")])
@pytest.mark.parametrize("adam", [False, True])
def test_weights_of_one_rank_are_named(change: Any, tensor: str, adam: bool) -> None:
    endings = ended(partial(changed, after=on_one_rank(change, once=True), adam=adam), "all-reduce", 3)
    endings.named(f"replica of rank 1 .*the parameters differ, first in {tensor}", at=AT, within=10)
    assert not any("state differs" in ending.message for ending in endings.workers)


def test_optimizer_state_of_one_rank_is_named() -> None:
    endings = ended(partial(changed, after=on_one_rank(load_state, once=True), adam=True), "all-reduce", 3)
    endings.named("replica of rank 1 .*the optimizer's state differs, first in exp_avg of 0.weight", at=AT, within=10)


@pytest.mark.parametrize("change", [clip, clip_data, forget_gradient])
def test_a_gradient_that_one_rank_changes_after_backward_is_named(change: Any) -> None:
    endings = ended(partial(changed, between=on_one_rank(change)), "all-reduce")
    endings.named("the gradient was changed after the backward pass on rank 1 otherwise", at=AT, within=10)


@every_family()
@pytest.mark.parametrize("change", [clip, clip_data, forget_gradient])
def test_a_gradient_that_all_ranks_change_alike_is_right(change: Any, strategy: str) -> None:
    ended(partial(changed, between=on_all(change)), strategy).right()


def test_nothing_is_compared_with_compare_every_0() -> None:
    loop = partial(changed, after=on_one_rank(write_data, once=True))
    first, second = ended(loop, "all-reduce", compare_every=0).right()
    assert first != second


@pytest.mark.parametrize("strategy", ["quorum", "eager-majority", "eager-solo", "adaptive"])
@pytest.mark.parametrize("change", [load_weights, load_state])
def test_what_one_rank_changes_under_rounds_is_named(change: Any, strategy: str) -> None:
    settings: dict[str, Any] = {"wait_for": "all"} if strategy == "quorum" else {}
    loop = partial(changed, after=on_one_rank(change, once=True), adam=True)
    endings = ended(loop, strategy, **settings)
    endings.named("parted from|differ from each other|written into the parameters", at=AT, within=10)


def loads_weights_for_real(cell: Cell) -> list[float]:
    return changed(cell, after=on_one_rank(load_weights, once=True))


def halves_rate_for_real(cell: Cell) -> list[float]:
    return changed(cell, after=on_one_rank(halve_rate, once=True))


@pytest.mark.parametrize(
    ("loop", "sentence"),
    [(loads_weights_for_real, "the parameters differ"), (halves_rate_for_real, "lr of parameter group 0 is")],
)
def test_changes_are_named_in_processes(loop: Any, sentence: str) -> None:
    ended_for_real(loop, "all-reduce").named(sentence, at=AT, within=10)


def skipping(cell: Cell, variant: str) -> tuple[list[float], float]:
    """Rank 1 has no batch at some steps: it makes the step without a gradient ("steps"), or does nothing ("skips")."""
    model = small_net()
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model, compare_every=5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for step in range(16):
        optimizer.zero_grad()
        skips = cell.world.rank == 1 and step in (3, 7, 11)
        if not skips:
            loss_of(model, cell.world.rank, step).backward()
        if variant == "steps" or not skips:
            cell.step(optimizer)
            schedule.step()
    optimizer.finish()
    return flat(model).tolist(), optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("variant", ["steps", "skips"])
@pytest.mark.parametrize("strategy", ["all-reduce", "quorum", "eager-majority"])
def test_a_rank_without_a_batch_does_not_part_from_the_others(strategy: str, variant: str) -> None:
    settings: dict[str, Any] = {"wait_for": "all"} if strategy == "quorum" else {}
    first, *others = ended(partial(skipping, variant=variant), strategy, 3, **settings).right()
    assert all(other == first for other in others)


@every_family()
def test_options_that_differ_at_distribute_are_refused(strategy: str) -> None:
    ended(lambda cell: cell.trainer(rate=0.1 / (1 + cell.world.rank)).step, strategy).refused(
        "lr of parameter group 0 is 0.05 on rank 1 and 0.1 on rank 0; every worker must"
    )


def test_a_state_that_rank_0_alone_has_loaded_is_everyones() -> None:
    def loop(cell: Cell) -> float:
        model = small_net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if cell.world.rank == 0:
            loss_of(model, 0, 0).backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.01
        optimizer = cell.distribute(optimizer, model)
        return float(optimizer.param_groups[0]["lr"])

    assert ended(loop, "all-reduce").right() == [0.01, 0.01]


def updating_by_hand(cell: Cell) -> list[float]:
    """Never calls `step()`; the cell counts passes instead."""
    model = small_net()
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step in range(STEPS):
        loss_of(model, cell.world.rank, step).backward()
        for p in model.parameters():
            assert p.grad is not None
            p.data -= 0.05 * p.grad
            p.grad = None
        cell.counted += 1
    optimizer.finish()
    return flat(model).tolist()


@every_family("all-reduce")
def test_updates_by_hand_are_named(strategy: str) -> None:
    ended(updating_by_hand, strategy).named("5 backward passes, and its step.. was never called", at=0, within=10)


def test_updates_by_hand_with_means_of_all_are_right() -> None:
    first, second = ended(updating_by_hand, "all-reduce").right()
    assert first == second


Meets = Literal["loader", "mean", "nowhere"]


def without_backward(cell: Cell, *, alike: bool, meets: Meets = "nowhere") -> list[float]:
    """Steps of zeroth order, each worker by its own loss, or all by the mean; `meets` is what of ours they call."""
    model = small_net()
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step, _ in enumerate(batches(cell, meets)):
        directions = [torch.randn(p.shape, generator=torch.Generator().manual_seed(step)) for p in model.parameters()]
        with torch.no_grad():
            losses = []
            for sign in (1e-3, -2e-3, 1e-3):
                losses.append(float(loss_of(model, cell.world.rank, step)))
                for p, way in zip(model.parameters(), directions, strict=True):
                    p.data.add_(way, alpha=sign)
            slope = torch.tensor((losses[1] - losses[2]) / 2e-3)
            mean = cell.world.mean(slope) if alike or meets == "mean" else slope
            slope = mean if alike else slope
            for p, way in zip(model.parameters(), directions, strict=True):
                p.data.add_(way, alpha=-0.001 * float(slope))
        cell.counted += 1
    optimizer.finish()
    return flat(model).tolist()


def batches(cell: Cell, meets: Meets) -> Iterable[Any]:
    """Of a loop of eight steps, where it is given batches; else something for each step."""
    return (
        quorate.loader(TensorDataset(torch.zeros(16 * cell.world.size, 1)), 2, share="static")
        if meets == "loader"
        else range(8)
    )


@every_family()
def test_steps_of_zeroth_order_by_the_own_loss_are_named_at_the_end(strategy: str) -> None:
    ended(partial(without_backward, alike=False), strategy).named("differ from each other", at=8, within=0)


NEVER_IN_BATCHES = r"step\(\) of the distributed SGD was never called in 6 batches, .* world\.mean\(\)"


@every_family()
def test_steps_of_zeroth_order_by_the_own_loss_are_named_by_the_loader(strategy: str) -> None:
    ended(partial(without_backward, alike=False, meets="loader"), strategy).named(NEVER_IN_BATCHES, at=0, within=10)


def own_slopes_for_real(cell: Cell) -> list[float]:
    return without_backward(cell, alike=False, meets="loader")


def test_steps_of_zeroth_order_are_named_by_the_loader_in_processes() -> None:
    ended_for_real(own_slopes_for_real, "all-reduce").named(NEVER_IN_BATCHES, at=0, within=10)


def test_steps_of_zeroth_order_are_told_where_workers_meet() -> None:
    endings = ended(partial(without_backward, alike=False, meets="mean"), "local-sgd")
    endings.named("differ from each other", at=8, within=0)
    endings.told_once("was never called in 6 calls of world.mean")


@every_family()
@pytest.mark.parametrize("meets", ["loader", "mean", "nowhere"])
def test_steps_of_zeroth_order_by_the_mean_loss_are_right(strategy: str, meets: Meets) -> None:
    endings = ended(partial(without_backward, alike=True, meets=meets), strategy)
    first, second = endings.right()
    assert first == second
    assert "never called" not in endings.told


def test_batches_that_are_added_up_before_the_first_step_are_no_loop_without_steps() -> None:
    def loop(cell: Cell) -> None:
        model = small_net()
        optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
        for number, (x,) in enumerate(quorate.loader(TensorDataset(torch.ones(32 * cell.world.size, 4)), 2)):
            with optimizer.accumulate() if number % 8 != 7 else nullcontext():
                model(x).sum().backward()
            if number % 8 == 7:
                cell.step(optimizer)
                optimizer.zero_grad()

    ended(loop, "all-reduce").right()
