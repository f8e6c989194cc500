"""The start of real processes: what messages carry, and collectives of a backend that are called for the first time."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import Mismatch
from quorate.wire.real.shared import is_possible
from quorate.wire.real.wire import RealWire
from tests.support.payload import payload
from tests.support.processes import run_real, run_real_world

LARGE = 100_000


def started(optimizer: str, world: Any) -> tuple[int, Tensor]:
    """The bytes of numbers in the messages of `distribute` and a step, and the parameters after it."""
    torch.manual_seed(world.rank)
    model = nn.Sequential(nn.Linear(40, 3000), nn.BatchNorm1d(3000), nn.Linear(3000, 40), nn.Linear(40, 1))
    plain: Any = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    if world.rank == 0:  # it has state, and the others have none
        model(torch.ones(2, 40)).sum().backward()
        plain.step()
        plain.zero_grad()
    with payload() as bytes_of:
        distributed = quorate.distribute(plain, model)
        model(torch.ones(2, 40)).sum().backward()
        distributed.step()
    distributed.finish()
    return sum(bytes_of.values()), torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.skipif(not is_possible(), reason="this system has no memory that processes can share")
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_no_numbers_of_a_model_are_in_messages_on_one_host(optimizer: str) -> None:
    results = run_real_world(3, partial(started, optimizer))
    assert [nbytes for nbytes, _ in results] == [0] * 3
    assert all(torch.equal(parameters, results[0][1]) for _, parameters in results)


def by_backend(wire: Wire) -> list[str]:
    """Sums of which each is new, of which some are waited for later than others, in an order of the worker's own."""
    assert isinstance(wire, RealWire)
    wire.__dict__["shares_memory"] = False
    wrong, roots = [], range(wire.size)
    with payload() as bytes_of:
        for turn in range(2):
            tensors = [torch.full((numel,), float(wire.rank)) for numel in (3, LARGE, 5, LARGE)]
            works = [wire.all_reduce(x) for x in tensors]
            for work in works if wire.rank else reversed(works):
                if not work.wait().eq(sum(roots)).all():
                    wrong.append(f"turn {turn}")
            if not wire.reduce(x := torch.full((LARGE,), 2.0), 0).wait().eq(2.0 * wire.size).all() and wire.rank == 0:
                wrong.append(f"reduced {x}")
    if bytes_of:
        wrong.append(f"in messages: {bytes_of}")
    return wrong


def test_new_collectives_of_a_backend_are_described_and_launched_in_order() -> None:
    assert run_real(3, by_backend) == [[]] * 3


def parts(wire: Wire) -> str:
    assert isinstance(wire, RealWire)
    wire.__dict__["shares_memory"] = False
    works = [wire.all_reduce(torch.ones(7)), wire.all_reduce(torch.ones(3 if wire.rank == 1 else 4))]
    first = works[0].wait()
    assert first.eq(wire.size).all()
    with pytest.raises(Mismatch) as error:
        works[1].wait()
    with pytest.raises(Mismatch):
        works[1].wait()
    return str(error.value)


def test_a_new_collective_that_differs_is_not_launched() -> None:
    assert all("all_reduce float32 (3,)" in sentence for sentence in run_real(2, parts))


def is_under_way(wire: Wire) -> bool:
    """A worker that only asks whether its new sum is done lets others have theirs."""
    assert isinstance(wire, RealWire)
    wire.__dict__["shares_memory"] = False
    work = wire.all_reduce(torch.ones(5))
    if wire.rank == 0:
        while wire.board.get("done") is None:
            work.done()
            wire.clock.sleep(0.002)
    else:
        work.wait(timeout=20.0)
        wire.board.set("done", b"1")
    return bool(work.wait().eq(wire.size).all())


def test_a_new_collective_begins_where_a_worker_asks_for_it() -> None:
    assert run_real(2, is_under_way) == [True, True]


def without_shared_memory(wire: Wire) -> tuple[int, bool]:
    assert isinstance(wire, RealWire)
    wire.__dict__["shares_memory"] = False
    assert wire.endpoint.mailbox is not None
    wire.endpoint.mailbox._arena = None
    x = torch.full((LARGE,), float(wire.rank == 0))
    with payload() as bytes_of:
        right = bool(wire.broadcast(x).wait().eq(1.0).all())
        wire.barrier().wait()
    return sum(bytes_of.values()), right


def test_no_worker_sends_more_than_twice_without_shared_memory() -> None:
    results = run_real(6, without_shared_memory)
    assert all(right for _, right in results)
    assert [nbytes // (4 * LARGE) for nbytes, _ in results] == [2, 2, 1, 0, 0, 0]
