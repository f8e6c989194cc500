"""Ordinary models x strategies: hooks, frozen layers, evaluations, buffers, and forward passes that write weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family, loss_of, small_net

LOCKSTEP: list[tuple[str, dict[str, Any]]] = [("all-reduce", {}), ("quorum", {"wait_for": "all"})]
"""Strategies whose workers make every step on the mean of all gradients."""
in_lockstep = pytest.mark.parametrize(("strategy", "settings"), LOCKSTEP, ids=["all-reduce", "quorum-all"])


def numbers_of(model: nn.Module) -> list[float]:
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


def by_hand(steps: int, size: int = 2) -> list[float]:
    """The small net after `steps` of SGD on the mean of all ranks' gradients, in this process."""
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([loss_of(model, rank, step) for rank in range(size)]).mean().backward()
        optimizer.step()
    return numbers_of(model)


# -- hooks of the script that step inside backward


def steps_in_hooks(is_first: bool, *, one_each: bool, steps: int = 4) -> Callable[[Cell], list[float]]:
    """Steps in post-accumulate hooks, registered before `distribute` (`is_first`) or after it; the parameters.

    `one_each`: an optimizer per parameter, or one of all that steps with each of them.
    """

    def loop(cell: Cell) -> list[float]:
        model = small_net()
        named, optimizers = dict(model.named_parameters()), dict[Any, Any]()

        def hook(p: torch.Tensor) -> None:
            cell.step(optimizers[p])
            optimizers[p].zero_grad()

        def register() -> None:
            for p in named.values():
                p.register_post_accumulate_grad_hook(hook)

        if is_first:
            register()
        if one_each:
            for name, p in named.items():
                optimizers[p] = cell.distribute(torch.optim.SGD([p], lr=0.05), model, name=name)
        else:
            whole = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
            optimizers |= dict.fromkeys(named.values(), whole)
        if not is_first:
            register()
        for step in range(steps):
            loss_of(model, cell.world.rank, step).backward()
        for optimizer in dict.fromkeys(optimizers.values()):
            optimizer.finish()
        return numbers_of(model)

    return loop


@pytest.mark.parametrize("one_each", [True, False], ids=["one-each", "one-of-all"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@in_lockstep
def test_steps_in_hooks_are_on_the_mean(
    strategy: str, settings: dict[str, Any], is_first: bool, one_each: bool
) -> None:
    first, second = ended(steps_in_hooks(is_first, one_each=one_each), strategy, **settings).right()
    assert first == second
    assert first == pytest.approx(by_hand(4), abs=1e-6)


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@every_family("all-reduce")
def test_steps_in_hooks_leave_equal_replicas(strategy: str, is_first: bool) -> None:
    first, second = ended(steps_in_hooks(is_first, one_each=True), strategy).right()
    assert first == second


def hooked(cell: Cell) -> list[float]:
    return steps_in_hooks(True, one_each=True)(cell)


def test_steps_in_hooks_are_on_the_mean_in_processes() -> None:
    first, second = ended_for_real(hooked, "all-reduce", timeout=120).right()
    assert first == second == pytest.approx(by_hand(4), abs=1e-6)


# -- backward passes inside an evaluation


def evaluates(ranks: set[int], *, clears: bool) -> Callable[[Cell], list[float]]:
    """After every other step an evaluation, in which some ranks run a backward pass (rank times, plus one)."""

    def loop(cell: Cell) -> list[float]:
        model = small_net()
        optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
        rank = cell.world.rank
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            cell.step(optimizer)
            if step % 2:
                with cell.world.evaluate():
                    for again in range((rank + 1) * (rank in ranks)):
                        loss_of(model, rank, 100 + again).backward()
                if clears:
                    optimizer.zero_grad()
        optimizer.finish()
        return numbers_of(model)

    return loop


@pytest.mark.parametrize("ranks", [{0}, {1}, {0, 1}], ids=["first", "last", "unequally"])
@in_lockstep
def test_a_backward_pass_in_an_evaluation_is_this_workers_own(
    strategy: str, settings: dict[str, Any], ranks: set[int]
) -> None:
    first, second = ended(evaluates(ranks, clears=True), strategy, **settings).right()
    assert first == second == pytest.approx(by_hand(6), abs=1e-6)


@every_family("all-reduce")
def test_a_backward_pass_in_an_evaluation_changes_nothing(strategy: str) -> None:
    attacked, plain = ended(evaluates({0, 1}, clears=True), strategy), ended(evaluates(set(), clears=True), strategy)
    assert attacked.right() == plain.right()


def keeps_gradients(cell: Cell) -> list[float]:
    """Gradients of an evaluation on rank 0 that the script does not clear are in its next contribution, as in torch."""
    model = small_net()
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    loss_of(model, cell.world.rank, 0).backward()
    cell.step(optimizer)
    optimizer.zero_grad()
    with cell.world.evaluate():
        if cell.world.is_first:
            loss_of(model, 0, 7).backward()
    loss_of(model, cell.world.rank, 1).backward()
    cell.step(optimizer)
    optimizer.finish()
    return numbers_of(model)


@in_lockstep
def test_gradients_of_an_evaluation_accumulate(strategy: str, settings: dict[str, Any]) -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ((loss_of(model, 0, 0) + loss_of(model, 1, 0)) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    ((loss_of(model, 0, 1) + loss_of(model, 0, 7) + loss_of(model, 1, 1)) / 2).backward()
    optimizer.step()
    first, second = ended(keeps_gradients, strategy, **settings).right()
    assert first == second == pytest.approx(numbers_of(model), abs=1e-6)


def evaluates_before_the_step(cell: Cell) -> None:
    """Rank 0's evaluation adds to gradients that all have agreed on."""
    model = small_net()
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    loss_of(model, cell.world.rank, 0).backward()
    with cell.world.evaluate():
        if cell.world.is_first:
            loss_of(model, 0, 7).backward()
    cell.step(optimizer)
    optimizer.finish()


def test_an_evaluation_between_backward_and_step_does_not_change_the_mean() -> None:
    sentence = r"inside world\.evaluate\(\) has added"
    ended(evaluates_before_the_step, "all-reduce").named(sentence, at=0, within=1)


# -- parameters that freeze, or come, on one rank only


def lays_out_on(rank: int, change: str, *, at: int = 4, steps: int = 40) -> Callable[[Cell], list[float]]:
    """One rank "freezes" a layer, or "adds" one to the optimizer, before step `at`."""

    def loop(cell: Cell) -> list[float]:
        model = small_net()
        trained = model[:2] if change == "adds" else model
        optimizer = cell.distribute(torch.optim.SGD(trained.parameters(), lr=0.05), model)
        for step in range(steps):
            if step == at and cell.world.rank == rank:
                if change == "adds":
                    optimizer.add_param_group({"params": list(model[2].parameters())})
                else:
                    model[0].requires_grad_(False)
            optimizer.zero_grad()
            loss_of(model, cell.world.rank, step).backward()
            cell.step(optimizer)
        optimizer.finish()
        return numbers_of(model)

    return loop


@pytest.mark.parametrize("change", ["freezes", "adds"])
@pytest.mark.parametrize("rank", [0, 1])
@every_family("all-reduce")
def test_a_change_of_layout_on_one_rank_is_named_soon(strategy: str, rank: int, change: str) -> None:
    sentence = rf"rank {rank} trains other parameters since its step .* and rank {1 - rank}"
    ended(lays_out_on(rank, change), strategy).named(sentence, at=4, within=32)


@pytest.mark.parametrize("change", ["freezes", "adds"])
def test_a_change_of_layout_on_one_rank_is_named_at_once(change: str) -> None:
    """Where all workers come to each step together."""
    sentence = r"rank 1 trains other parameters since its step \d \(.*\), and rank 0 is at its step 6 without it"
    ended(lays_out_on(1, change), "quorum", wait_for="all").named(sentence, at=4, within=1)
    ended(lays_out_on(1, change), "all-reduce").named("called different things", at=4, within=0)


@every_family("all-reduce")
def test_a_change_of_layout_is_named_where_the_others_have_ended(strategy: str) -> None:
    sentence = "rank 0 trains other parameters .* and rank 1 pauses or ends after its step 6 without it"
    ended(lays_out_on(0, "freezes", steps=6), strategy).named(sentence, at=4, within=2)


def freezes_on_rank_1(cell: Cell) -> list[float]:
    return lays_out_on(1, "freezes")(cell)


def test_a_change_of_layout_on_one_rank_is_named_in_processes() -> None:
    endings = ended_for_real(freezes_on_rank_1, "quorum", timeout=120, wait_for="all")
    endings.named("rank 1 trains other parameters since its step 5", at=4, within=2)


# -- streams of unequal length, and a schedule per step


def one_cycle(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=16)


def cosine(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)


def warm_up(optimizer: Any) -> Any:
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6)
    fall = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [6])


def unequal_streams(
    schedule: Callable[[Any], Any], kind: type[torch.optim.Optimizer], *, is_early: bool, per_epoch: bool = False
) -> Callable[[Cell], Any]:
    """Five batches an epoch on rank 0, three on rank 1; rates after each step by rank, and the parameters.

    `is_early`: the schedule is made before `distribute`. `per_epoch`: it is stepped at the end of each epoch.
    """

    def loop(cell: Cell) -> Any:
        model = small_net()
        plain = kind(model.parameters(), lr=0.05)
        scheduler = schedule(plain) if is_early else None
        optimizer = cell.distribute(plain, model)
        scheduler = scheduler or schedule(optimizer)
        rates, seen = [], []
        for epoch in range(3):
            for step in range(5 if cell.world.is_first else 3):
                optimizer.zero_grad()
                loss_of(model, cell.world.rank, 10 * epoch + step).backward()
                rates.append((len(seen), step, optimizer.param_groups[0]["lr"]))
                cell.step(optimizer)
                if not per_epoch:
                    scheduler.step()
            if per_epoch:
                scheduler.step()
            with cell.world.evaluate():
                seen.append((optimizer.param_groups[0]["lr"], numbers_of(model)))
        optimizer.finish()
        return rates, seen, numbers_of(model), scheduler.last_epoch

    return loop


@pytest.mark.parametrize(("schedule", "kind"), [(one_cycle, "SGD"), (cosine, "AdamW"), (warm_up, "SGD")])
@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
def test_schedules_follow_the_training_where_streams_are_unequal(
    schedule: Callable[[Any], Any], kind: str, is_early: bool
) -> None:
    loop = unequal_streams(schedule, getattr(torch.optim, kind), is_early=is_early)
    (rates, *first), (others, *second) = ended(loop, "all-reduce").right()
    assert first == second
    assert first[-1] == 15
    assert set(others) <= set(rates), "the same rate in each step that both make"


def test_a_schedule_per_epoch_stays_one_where_streams_are_unequal() -> None:
    loop = unequal_streams(cosine, torch.optim.SGD, is_early=False, per_epoch=True)
    (rates, *first), (others, *second) = ended(loop, "all-reduce").right()
    assert first == second and first[-1] == 3
    assert set(others) <= set(rates)


def own_streams(cell: Cell) -> Any:
    return unequal_streams(cosine, torch.optim.AdamW, is_early=False)(cell)


@every_family("all-reduce")
def test_unequal_streams_end_with_equal_replicas(strategy: str) -> None:
    (_, _, first, _), (_, _, second, _) = ended(own_streams, strategy).right()
    assert first == second


def test_schedules_follow_the_training_in_processes() -> None:
    (rates, *first), (others, *second) = ended_for_real(own_streams, "all-reduce", timeout=120).right()
    assert first == second and set(others) <= set(rates)
