"""Calls that rank 0 alone makes, as to log, and steps inside an evaluation: one sentence at once, and no long wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quorate
from quorate.launch.worker.world import World
from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family, loss_of, small_net
from tests.support.processes import outcomes_real_world

STEPS, AT = 12, 5


def loop_with(call: Callable[[World, int], None]) -> Callable[[Cell], None]:
    """A loop that makes `call(world, step)` after each step."""

    def loop(cell: Cell) -> None:
        model = small_net()
        optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, cell.world.rank, step).backward()
            cell.step(optimizer)
            call(cell.world, step)
        optimizer.finish()

    return loop


def evaluates(world: World, step: int, *, at: Any = "mean") -> None:
    if world.is_first and step == AT:
        with world.evaluate(at=at):
            pass


def evaluates_its_own(world: World, step: int) -> None:
    evaluates(world, step, at="replica")


def evaluates_at_the_end(world: World, step: int) -> None:
    evaluates(world, step - STEPS + 1 + AT)


@every_family()
@pytest.mark.parametrize("call", [evaluates, evaluates_its_own])
def test_an_evaluation_of_rank_0_alone_is_named(call: Callable[[World, int], None], strategy: str) -> None:
    sentence = r"rank 0 has entered world\.evaluate\(\), and rank 1 ends its training without it; all workers must"
    ended(loop_with(call), strategy).named(sentence, at=STEPS, within=0)


def evaluates_for_real(cell: Cell) -> None:
    loop_with(evaluates)(cell)


def test_an_evaluation_of_rank_0_alone_is_named_in_processes() -> None:
    ended_for_real(evaluates_for_real, "all-reduce").named(
        r"all workers must enter world\.evaluate", at=STEPS, within=0
    )


def test_an_evaluation_of_rank_0_after_the_last_step_does_not_wait_under_gossip() -> None:
    """Those that have ended take part in the agreement about what was lost with the dead."""
    ended(loop_with(evaluates_at_the_end), "d-psgd").named(
        r"all workers must enter world\.evaluate", at=STEPS, within=0
    )


@every_family("d-psgd")
def test_workers_that_have_ended_do_not_hold_up_an_evaluation(strategy: str) -> None:
    ended(loop_with(evaluates_at_the_end), strategy).right()


def test_a_long_training_beside_an_evaluation_of_one_rank_alone_is_told() -> None:
    def loop(cell: Cell) -> None:
        trainer = cell.trainer().train(AT)
        if cell.world.rank == 1:
            with cell.world.evaluate():
                pass
        trainer.train(200).finish()

    endings = ended(loop, "all-reduce")
    endings.told_once(r"rank 1 has entered world\.evaluate\(\), and rank 0 has made \d+ steps since without it")


def test_a_barrier_of_rank_0_alone_is_named_where_the_others_finish() -> None:
    def barrier(world: World, step: int) -> None:
        if world.is_first and step == AT:
            world.barrier()

    sentence = r"rank 1 waits for all workers in optimizer\.finish\(\), and rank 0 waits for it in world\.barrier\(\)"
    ended(loop_with(barrier), "eager-majority").named(sentence, at=STEPS, within=0)


def test_a_mean_of_rank_0_alone_is_named_where_the_others_evaluate() -> None:
    def mean(world: World, step: int) -> None:
        if step == AT and world.is_first:
            world.mean(1.0)
        elif step == AT:
            with world.evaluate():
                pass

    sentence = r"rank 1 waits for all workers in world\.evaluate\(\), and rank 0 waits for it in world\.mean\(\)"
    ended(loop_with(mean), "all-reduce").named(sentence, at=STEPS, within=0)


def one_leaves(world: World) -> None:
    """Rank 1 waits for rank 0 in the `finish` that is made at exit."""
    model = small_net()
    quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
    if world.is_first:
        world.mean(1.0)


def test_a_worker_at_the_end_of_its_script_is_not_waited_for() -> None:
    first, _ = outcomes_real_world(2, one_leaves)
    assert "rank 1 has come to the end of its script, and rank 0 waits for it in world.mean()" in first.error_message


def test_a_file_that_rank_0_alone_saves_is_named(tmp_path: Any) -> None:
    def saves(world: World, step: int) -> None:
        if world.is_first and step == AT:
            quorate.save(tmp_path / "model.pt")

    sentence = r"for rank 1 in quorate\.save\(\) of model\.pt; all workers call it"
    ended(loop_with(saves), "all-reduce").named(sentence, at=STEPS, within=0)


def test_a_step_inside_an_evaluation_is_refused_where_servers_make_the_steps() -> None:
    def loop(cell: Cell) -> None:
        trainer = cell.trainer().train(AT)
        with cell.world.evaluate():
            trainer.train(AT + 1)
        trainer.finish()

    sentence = (
        r"step\(\) was called inside `with world\.evaluate\(\):`, and under parameter-server servers make the steps"
    )
    ended(loop, "parameter-server").named(sentence, at=AT, within=1)


@every_family("parameter-server")
def test_a_step_inside_an_evaluation_is_made_elsewhere(strategy: str) -> None:
    def loop(cell: Cell) -> list[float]:
        trainer = cell.trainer().train(AT)
        with cell.world.evaluate():
            trainer.train(AT + 1)
        found: list[float] = trainer.train(STEPS).finish().parameters.tolist()
        return found

    first, second = ended(loop, strategy).right()
    assert first == second


def test_parameters_on_servers_have_one_optimizer_at_a_time() -> None:
    def loop(cell: Cell) -> None:
        model = small_net()
        cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
        cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)

    sentence = r'the distributed optimizer "1" trains 0\.weight already, .*; call its finish\(\) on all workers before'
    ended(loop, "parameter-server").refused(sentence)


def test_parameters_on_servers_have_another_optimizer_after_the_end_of_the_first() -> None:
    def loop(cell: Cell) -> list[float]:
        model = small_net()
        for rate in (0.05, 0.01):
            optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=rate), model)
            for step in range(AT):
                optimizer.zero_grad()
                loss_of(model, cell.world.rank, step).backward()
                cell.step(optimizer)
            optimizer.finish()
        return [float(p.detach().sum()) for p in model.parameters()]

    first, second = ended(loop, "parameter-server").right()
    assert first == second
