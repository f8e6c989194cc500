"""Scripts that call `torch.distributed` themselves beside a quorum."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import all_reduce

import quorate
from quorate.core.contracts import Board
from quorate.launch.worker import stack_report
from quorate.launch.worker.world import World
from quorate.wire import current
from tests.support.processes import run_real_board, run_real_world

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "all_reduce": lambda x: dist.all_reduce(x),
    "imported": lambda x: all_reduce(x),
    "async": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "barrier": lambda x: dist.barrier(),
    "monitored_barrier": lambda x: dist.monitored_barrier(),
    "all_gather_object": lambda x: dist.all_gather_object([None] * dist.get_world_size(), {"loss": float(x)}),
    "broadcast_object_list": lambda x: dist.broadcast_object_list([float(x)], src=0),
    "new_group": lambda x: dist.new_group(),
}
NAMES = {"imported": "all_reduce", "async": "Work.wait"}


def trains(calls: list[str], world: World) -> list[float]:
    """A loop that reduces its loss for the log now and then; the parameters it ends with."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = quorate.distribute(plain, model, strategy="eager-majority")
    draw = random.Random(world.rank)
    for step in range(8 * len(calls)):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        time.sleep(0.02 * draw.random())
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3:
            CALLS[calls[step // 4 % len(calls)]](loss.detach())
    optimizer.finish()
    return [float(p.detach().double().sum()) for p in model.parameters()]


def test_a_quorum_does_not_wait_for_those_that_wait_in_torch() -> None:
    found = run_real_world(3, partial(trains, list(CALLS)))
    assert all(one == found[0] for one in found)


def waits_in(call: str, world: World) -> str | None:
    """What rank 0 is said to wait for while rank 1 has not come; rank 1 comes once that is said."""
    if world.rank == 1:
        world.wire.board.wait(["said"], 60.0)
        CALLS[call](torch.zeros(()))
        return None
    place, main, wire = current.here(), threading.get_ident(), world.wire
    said: list[Any] = []

    def look() -> None:
        while not said or said[-1] is None:
            said.append(stack_report.here(wire, place, main).waits)  # type: ignore[arg-type]
            time.sleep(0.005)
        wire.board.set("said", b"1")

    looking = threading.Thread(target=look)
    looking.start()
    CALLS[call](torch.zeros(()))
    looking.join()
    assert main not in wire.endpoint.waits  # type: ignore[attr-defined]
    return str(said[-1].operation)


@pytest.mark.parametrize("call", CALLS)
def test_who_waits_in_torch_is_said_to(call: str) -> None:
    found = run_real_world(2, partial(waits_in, call))
    assert found == [f"torch.distributed.{NAMES.get(call, call)}", None]


def times_out(world: World) -> str:
    """A wait with a time of its own ends then, and the work can be waited for again."""
    if world.rank == 1:
        world.wire.board.wait(["over"], 60.0)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    said = ""
    if world.rank == 0:
        try:
            work.wait(timedelta(seconds=0.1))
        except RuntimeError as error:
            said = str(error)
        world.wire.board.set("over", b"1")
    work.wait()
    return said


def test_a_wait_with_a_time_of_its_own_ends_then() -> None:
    first, other = run_real_world(2, times_out)
    assert "timed out" in first.lower()
    assert other == ""


def limit_of_torch(board: Board, rank: int, size: int) -> timedelta:
    quorate.join(timeout=77.0)
    default: Any = dist.distributed_c10d._get_default_group()
    found: timedelta = default._get_backend(torch.device("cpu")).options._timeout
    return found


def test_collectives_of_torch_wait_as_long_as_the_wire() -> None:
    assert run_real_board(2, limit_of_torch) == [timedelta(seconds=77)] * 2
