"""Sums by pieces among real processes: a worker that dies or is stopped in a piece costs no bit, and nobody waits."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.launch.worker.join import join
from quorate.rounds import piecewise_sums
from quorate.train.distribute import distribute
from quorate.wire import current
from quorate.wire.real import shared
from tests.support.processes import outcomes_real, run_real

pytestmark = pytest.mark.skipif(not shared.is_possible(), reason="this system has no memory that processes can share")

NUMEL, STEPS, WAITS = 1_000_003, 3, 30.0
SLOW = 2


def gradient_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(10 * rank + step))


def expected(size: int, dead: int | None = None) -> torch.Tensor:
    """The parameters after the steps, of sums in order of rank; `dead` is in the first sum only."""
    parameters = torch.zeros(NUMEL)
    for step in range(STEPS):
        ranks = [rank for rank in range(size) if step == 0 or rank != dead]
        total = torch.zeros(NUMEL)
        for rank in ranks:
            total += gradient_of(rank, step) * (1 / size)
        parameters -= total * (size / len(ranks))
    return parameters


class Interrupted:
    """In place of the addition of a piece: worker `SLOW` stops or dies in its first one, before the others begin."""

    def __init__(self, wire: Wire, by: signal.Signals | None) -> None:
        self._wire, self._by, self._add, self.pieces = wire, by, piecewise_sums._Sum._add, 0
        self._is_first = True

    def add(self, sum_: Any, piece: int, scratch: Any) -> None:
        is_first, self._is_first = self._is_first, False
        if self._by is not None and is_first and self._wire.rank == SLOW:
            self._wire.board.set("is in a piece", b"1")
            os.kill(os.getpid(), self._by)
        elif self._by is not None and is_first:
            self._wire.board.wait(["is in a piece"], WAITS)
        self._add(sum_, piece, scratch)
        self.pieces += 1


def bits_of(parameters: torch.Tensor) -> int:
    return int((parameters.view(torch.int32).long() * torch.arange(1, NUMEL + 1)).sum())


def training(by: signal.Signals | None, wire: Wire) -> tuple[int, int]:
    """Train under a quorum of all, with a signal in the first sum. Returns bits of parameters, and pieces added."""
    current.enter(wire)
    world = join()
    wire.board.set(f"process {wire.rank}", str(os.getpid()).encode())
    interrupted = Interrupted(wire, by)
    piecewise_sums.PIECE, piecewise_sums.LEAST_BYTES = 1 << 16, 1
    piecewise_sums._Sum._add = lambda *about: interrupted.add(*about)  # type: ignore[method-assign]
    x = torch.nn.Parameter(torch.zeros(NUMEL))
    module = torch.nn.Module()
    module.x = x
    optimizer = torch.optim.SGD([x], lr=1.0)
    settings: dict[str, Any] = {"wait_for": "all", "grace": WAITS, "compare_every": 0}
    distribute(optimizer, module, strategy="quorum", on_death="continue", **settings)
    for step in range(STEPS):
        x.grad = gradient_of(world.rank, step)
        optimizer.step()
        if by is signal.SIGSTOP and step == 0 and wire.rank == 0:
            process = wire.board.get(f"process {SLOW}")
            assert process is not None
            os.kill(int(process), signal.SIGCONT)  # the round is over without it
    return bits_of(x.detach()), interrupted.pieces


@pytest.mark.parametrize("size", [2, 5])
def test_all_workers_add_and_the_bits_are_those_of_sums_in_order_of_rank(size: int) -> None:
    results = run_real(size, functools.partial(training, None))
    assert {bits for bits, _ in results} == {bits_of(expected(size))}
    assert sum(pieces > 0 for _, pieces in results) > 1


def test_a_worker_stopped_in_a_piece_is_not_waited_for_and_changes_nothing_later() -> None:
    results = run_real(4, functools.partial(training, signal.SIGSTOP))
    assert {bits for bits, _ in results} == {bits_of(expected(4))}


def test_the_leader_adds_the_piece_in_which_a_worker_dies() -> None:
    outcomes = outcomes_real(4, functools.partial(training, signal.SIGKILL))
    assert outcomes[SLOW].exit_code == -signal.SIGKILL
    results = [outcome.result for outcome in outcomes if outcome.rank != SLOW]
    assert {result and result[0] for result in results} == {bits_of(expected(4, SLOW))}, outcomes
