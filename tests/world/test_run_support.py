"""The tests' own way to run tasks in real processes: it never waits past its limit and names who failed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch

from quorate.core.contracts import Board, Wire
from quorate.core.errors import PeerFailed
from quorate.launch.local.process_group import Crew
from quorate.launch.worker.world import World
from tests.support import processes
from tests.support.launching import LIMIT, until
from tests.support.processes import (
    WorkersFailed,
    outcomes_real,
    outcomes_real_board,
    run_real,
    run_real_board,
    run_real_world,
)


def _sum_of_ranks(wire: Wire) -> list[float]:
    return wire.all_reduce(torch.full((2,), float(wire.rank))).wait().tolist()


def _mean_of_ranks(world: World) -> float:
    return world.mean(float(world.rank))


def _meet(board: Board, rank: int, size: int) -> tuple[int, int]:
    board.set(f"here/{rank}", b"1")
    board.wait([f"here/{peer}" for peer in range(size)], LIMIT)
    return rank, size


def _one_is_killed(wire: Wire) -> list[float]:
    if wire.rank == 1:
        wire.crash()
    return _sum_of_ranks(wire)


def _one_raises(wire: Wire) -> None:
    if wire.rank == 1:
        raise KeyError("no such example")
    wire.barrier().wait()


def _one_hangs(board: Board, rank: int, size: int) -> int:
    if rank == 1:
        board.set("hangs", b"1")
        threading.Event().wait()
    board.wait(["hangs"], LIMIT)
    return rank


def _one_is_stopped(board: Board, rank: int, size: int) -> None:
    if rank == 1:
        board.set("hangs", b"1")
        os.kill(os.getpid(), signal.SIGSTOP)
    board.wait(["hangs"], LIMIT)


def _big(board: Board, rank: int, size: int) -> bytes:
    return b"x" * 5_000_000


def _cannot_be_sent(board: Board, rank: int, size: int) -> object:
    return lambda: None


def test_results_come_by_rank() -> None:
    assert run_real(3, _sum_of_ranks) == [[3.0, 3.0]] * 3
    assert run_real_world(2, _mean_of_ranks) == [0.5, 0.5]
    assert run_real_board(2, _meet) == [(0, 2), (1, 2)]
    assert [len(one) for one in run_real_board(2, _big)] == [5_000_000] * 2


def test_a_killed_process_is_named_and_the_others_say_what_they_saw() -> None:
    outcomes = outcomes_real(3, _one_is_killed)
    assert [one.exit_code for one in outcomes] == [1, -9, 1]
    assert [one.error_type for one in outcomes] == [PeerFailed, None, PeerFailed]
    assert all("rank 1 " in outcomes[rank].error_message for rank in (0, 2))
    with pytest.raises(WorkersFailed, match=r"^rank 1 was killed by signal 9 \(SIGKILL\)\n"):
        run_real(3, _one_is_killed)


def test_an_exception_is_named_with_its_traceback() -> None:
    with pytest.raises(WorkersFailed, match=r"^rank 1 raised KeyError: 'no such example'\n(.|\n)*in _one_raises"):
        run_real(2, _one_raises)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over as soon as rank 0 has ended."""
    watch = Crew.watch

    def over(crew: Crew, seconds: float) -> bool:
        until(lambda: watch(crew, 0.0) or 0 not in crew.alive)
        return watch(crew, 0.0)

    monkeypatch.setattr(Crew, "watch", over)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("task", [_one_hangs, _one_is_stopped])
def test_who_hangs_is_killed_at_the_limit_and_named(
    task: Callable[[Board, int, int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STACK_SECONDS", 0.2)  # one that is stopped writes none
    outcomes = outcomes_real_board(2, task)
    assert [one.exit_code for one in outcomes] == [0, None]
    assert outcomes[1].is_hung


@pytest.mark.usefixtures("limit")
def test_the_stack_of_who_hangs_is_shown() -> None:
    with pytest.raises(WorkersFailed, match=r"^rank 1 hung: it had not ended after 1 s(.|\n)*in _one_hangs"):
        run_real_board(2, _one_hangs, timeout=1.0)


def test_what_cannot_be_sent_is_said() -> None:
    with pytest.raises(WorkersFailed, match="cannot be sent to the test"):
        run_real_board(1, _cannot_be_sent)
