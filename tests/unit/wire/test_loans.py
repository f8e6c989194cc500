"""Memory that workers of a host lend each other: the borrower reads and writes where the vector lies."""

from __future__ import annotations

import os

import pytest
import torch

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError
from quorate.wire.real import shared
from quorate.wire.real.loans import Borrower, Loan
from quorate.wire.virtual.world import VirtualWorld
from tests.support.processes import run_real

NUMEL = shared.LEAST_BYTES


def lends(wire: Wire) -> list[float] | None:
    """Rank 1 lends the middle of rank 0's vector to rank 2, which writes there."""
    x = wire.empty(NUMEL, torch.float32)
    if wire.rank == 0:
        x.fill_(1.0)
        wire.send(Message((x,), shared=True), 1, "x").wait()
    elif wire.rank == 1:
        (seen,) = wire.receive(0, "x").wait()[1].tensors
        loan = wire.lend(seen[10:20])
        assert loan is not None
        wire.send(Message(header=loan), 2, "loan").wait()
    else:
        loan = dict(wire.receive(1, "loan").wait()[1].header)
        numbers = wire.borrow(loan).view(torch.float32)
        assert numbers.tolist() == [1.0] * 10
        numbers += torch.arange(10)
        further = wire.borrow({**loan, "offset": loan["offset"] + 4})
        assert further.view(torch.float32)[0] == 2.0
    wire.barrier().wait()
    return x[8:22].tolist() if wire.rank == 0 else None


@pytest.mark.skipif(not shared.is_possible(), reason="this system has no memory that processes can share")
def test_a_third_worker_writes_into_memory_that_another_one_lends() -> None:
    written = run_real(3, lends)[0]
    assert written == [1.0, 1.0, *range(1, 11), 1.0, 1.0]


def lends_own(wire: Wire) -> tuple[bool, bool]:
    own, ordinary = wire.empty(NUMEL, torch.float32), torch.zeros(NUMEL)
    return wire.lend(own[3:]) is not None, wire.lend(ordinary) is not None


def test_ordinary_memory_is_not_lent() -> None:
    assert run_real(2, lends_own) == [(shared.is_possible(), False)] * 2
    assert VirtualWorld(1).run(lends_own) == [(False, False)]


def copies_own(wire: Wire) -> tuple[list[float], list[float], bool, bool]:
    x = wire.empty(NUMEL, torch.float32).fill_(1.0)
    loan, address = wire.lend(x), x.data_ptr()
    assert loan is not None
    copied = wire.borrow(loan, copy_of=x).view(torch.float32)
    copied[0] = 2.0
    numbers = [x[0].item(), x[-1].item()], [copied[0].item(), copied[-1].item()]
    del x
    further = wire.empty(NUMEL, torch.float32)
    is_held = further.data_ptr() != address
    del copied
    return *numbers, is_held, wire.empty(NUMEL, torch.float32).data_ptr() == address


@pytest.mark.skipif(not shared.is_possible(), reason="this system has no memory that processes can share")
def test_a_copy_changes_no_lent_memory_and_holds_it() -> None:
    assert run_real(2, copies_own) == [([1.0, 1.0], [2.0, 1.0], True, True)] * 2


def test_memory_that_is_out_of_reach_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="process 4194304 cannot be reached"):
        Borrower().borrow(Loan(4194304, 3, 1, 0, 8).header())
    descriptor = os.open(os.devnull, os.O_RDWR)
    try:
        with pytest.raises(ConfigurationError, match="no longer lends"):
            Borrower().borrow(Loan(os.getpid(), descriptor, -1, 0, 8).header())
    finally:
        os.close(descriptor)
