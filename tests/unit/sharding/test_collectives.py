"""FSDP's two collectives over wires: everyone's pieces, and sums that are the same wherever a piece lies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import Mismatch
from quorate.sharding.collectives import Pieces, WireAllGather, WireReduceScatter
from quorate.sharding.traffic import Traffic
from quorate.wire.exchange import sum_in_order
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

DTYPES = [torch.float32, torch.bfloat16, torch.float64]
NUMEL = 6
"""Elements of a piece."""


def numbers(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    """The numbers of `rank` for everyone; sums of them depend on their order."""
    draw = torch.Generator().manual_seed(rank)
    return (torch.randn(size * NUMEL, generator=draw, dtype=torch.float64) * 3.0**rank).to(dtype)


def pieces_of(wire: Wire) -> Pieces:
    return Pieces(wire.channel("fsdp"), Traffic())


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_gather(size: int, dtype: torch.dtype, is_async: bool) -> None:
    def task(wire: Wire) -> Tensor:
        gather = WireAllGather(pieces_of(wire))
        out = gather.allocate([size * NUMEL], dtype=dtype, device=torch.device("cpu"))
        own_piece = out.chunk(size)[wire.rank]  # as FSDP gives it
        own_piece.copy_(numbers(wire.rank, 1, dtype))
        work = gather(out, own_piece, None, async_op=is_async)
        assert (work is not None) is is_async
        if work is not None:
            assert work.wait()
        return out.clone()

    wanted = torch.cat([numbers(rank, 1, dtype) for rank in range(size)])
    assert all(torch.equal(gathered, wanted) for gathered in VirtualWorld(size).run(task))


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("operation", ["SUM", "AVG"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_reduce_scatter_adds_in_order_of_rank(size: int, dtype: torch.dtype, operation: str, hosts: int) -> None:
    def task(wire: Wire) -> Tensor:
        scatter = WireReduceScatter(pieces_of(wire))
        gradient = scatter.allocate([size * NUMEL], dtype=dtype, device=torch.device("cpu"))
        gradient.copy_(numbers(wire.rank, size, dtype))
        before, out = gradient.clone(), torch.empty(NUMEL, dtype=dtype)
        work = scatter(out, gradient, None, getattr(dist.ReduceOp, operation), async_op=True)
        assert work is not None
        work.wait()
        wire.barrier().wait()
        assert torch.equal(gradient, before)
        return out

    places = [rank * hosts // size for rank in range(size)]
    sums = VirtualWorld(size, network=Network(hosts=places)).run(task)
    whole = sum_in_order([numbers(rank, size, dtype) for rank in range(size)], places)
    wanted = whole / size if operation == "AVG" else whole
    assert torch.equal(torch.cat(sums), wanted)


@pytest.mark.parametrize("calls", [1, 3])
def test_what_stays_of_a_sum_is_in_memory_of_its_own(calls: int) -> None:
    """FSDP allocates like this: the input, which is lent to the others, and the output, which becomes the gradient."""

    def task(wire: Wire) -> list[bool]:
        pieces = pieces_of(wire)
        lent, scatter = pieces.allocate, WireReduceScatter(pieces)
        addresses, where = list[int](), torch.device("cpu")

        def allocate(size: Sequence[int], **how: Any) -> Tensor:
            memory = lent(size, **how)
            addresses.append(memory.data_ptr())
            return memory

        pieces.allocate = allocate  # type: ignore[method-assign]
        are_lent = list[bool]()
        for _ in range(calls):
            there = scatter.allocate([2 * NUMEL], dtype=torch.float32, device=where).fill_(1.0)
            out = scatter.allocate([NUMEL], dtype=torch.float32, device=where)
            scatter(out, there, None, dist.ReduceOp.SUM)
            are_lent += [there.data_ptr() in addresses, out.data_ptr() in addresses]
        return are_lent

    assert VirtualWorld(2).run(task) == [[True, False] * calls] * 2


def test_several_are_under_way_at_once() -> None:
    """FSDP does this: the next block is gathered while this one is used."""

    def task(wire: Wire) -> list[Tensor]:
        gather, made = WireAllGather(pieces_of(wire)), []
        for call in range(3):
            out = torch.full((2 * NUMEL,), torch.nan)
            out.chunk(2)[wire.rank].fill_(10.0 * call + wire.rank)
            made.append((gather(out, out.chunk(2)[wire.rank], None, async_op=True), out))
        for work, _ in reversed(made):
            assert work is not None
            work.wait()
        return [out for _, out in made]

    for outs in VirtualWorld(2).run(task):
        assert [out[[0, -1]].tolist() for out in outs] == [[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]


def test_each_sends_the_pieces_of_the_others() -> None:
    def task(wire: Wire) -> tuple[int, int]:
        meter = Meter()
        pieces = Pieces(Metered(wire.channel("fsdp"), meter), Traffic(meter))
        out = torch.zeros(3 * 1000)
        WireAllGather(pieces)(out, out.chunk(3)[wire.rank], None)
        gathered = meter.bytes_out.total()
        WireReduceScatter(pieces)(torch.empty(1000), torch.ones(3000), None, dist.ReduceOp.SUM)
        return gathered, meter.bytes_out.total() - gathered

    assert VirtualWorld(3).run(task) == [(8000, 8000)] * 3


def test_waits_are_told() -> None:
    def task(wire: Wire) -> float:
        waits = list[float]()
        pieces = Pieces(wire, Traffic(waits=[waits.append]))
        wire.clock.sleep(2.0 * wire.rank)
        pieces.meet("here")
        return sum(waits)

    first, second = VirtualWorld(2).run(task)
    assert first > 1.9 and second < 0.1


def test_workers_meet_and_who_calls_something_else_is_told() -> None:
    def task(wire: Wire) -> str:
        pieces = pieces_of(wire)
        pieces.meet("the end of training")
        gather = partial(WireAllGather(pieces), torch.zeros(4), torch.zeros(2), None)
        with pytest.raises(Mismatch) as refused:
            gather() if wire.rank else pieces.meet("the end of training")
        return str(refused.value)

    for said in VirtualWorld(2).run(task):
        assert "rank 0 the end of training, rank 1 all_gather float32 (2,); every" in said
