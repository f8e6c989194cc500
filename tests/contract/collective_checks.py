"""What every collective must do, on any wire of any size. A check returns bytes that must be equal on all ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from quorate.core.contracts import Wire, Write
from quorate.wire.cut import piece
from quorate.wire.exchange import sum_in_order

SUMMED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
MOVED = (*SUMMED, torch.bool, torch.uint8, torch.int16, torch.complex64)


def bits(*tensors: Tensor) -> bytes:
    """The bytes of tensors, and their shapes and types."""
    parts = []
    for x in tensors:
        parts.append(f"{x.dtype} {tuple(x.shape)} ".encode())
        parts.append(bytes(x.detach().contiguous().flatten().view(torch.uint8).tolist()) if x.numel() else b"")
    return b"".join(parts)


def ramp(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A different small tensor for each rank, exact in every type."""
    count = int(torch.Size(shape).numel())
    return ((torch.arange(count) + rank) % 7).reshape(shape).to(dtype)


def check_all_reduce(wire: Wire) -> bytes:
    results = []
    for dtype in SUMMED:
        for shape in ((), (0,), (0, 3), (1,), (5,), (3, 4)):
            x = ramp(wire.rank, dtype, shape)
            found = wire.all_reduce(x).wait()
            assert found is x
            expected = sum(
                (ramp(r, torch.int64, shape) for r in range(wire.size)), torch.zeros(shape, dtype=torch.int64)
            )
            torch.testing.assert_close(x, expected.to(dtype), rtol=0, atol=0)
            results.append(x)
    return bits(*results)


def check_all_reduce_has_equal_bits(wire: Wire) -> bytes:
    noise = torch.randn(1001, generator=torch.Generator().manual_seed(wire.rank))
    return bits(wire.all_reduce(noise).wait())


def check_small_floats_are_summed_wide(wire: Wire) -> bytes:
    for dtype, large in ((torch.bfloat16, 256.0), (torch.float16, 2048.0)):
        x = torch.tensor([large if wire.rank == 0 else 1.0], dtype=dtype)
        wire.all_reduce(x).wait()
        given = [torch.tensor([large if rank == 0 else 1.0]).to(dtype) for rank in range(wire.size)]
        expected = sum_in_order(given, [wire.host_of(rank) for rank in range(wire.size)])
        assert x == expected, "added in the small type, each 1 is lost"
    return b""


def check_all_reduce_of_strided(wire: Wire) -> bytes:
    whole = torch.zeros(4, 6)
    columns = whole[:, ::2]
    turned = torch.arange(6.0).reshape(2, 3).t()
    columns += wire.rank + 1
    wire.all_reduce(columns).wait()
    wire.all_reduce(turned).wait()
    total = wire.size * (wire.size + 1) / 2
    assert whole[:, ::2].eq(total).all()
    assert whole[:, 1::2].eq(0).all()
    assert turned.equal(torch.arange(6.0).reshape(2, 3).t() * wire.size)
    return bits(whole, turned)


def check_reduce_scatter(wire: Wire) -> bytes:
    for dtype in SUMMED:
        for shape in ((0,), (1,), (7,), (5, 13)):
            mine = wire.reduce_scatter(ramp(wire.rank, dtype, shape)).wait()
            total = sum((ramp(r, torch.int64, shape) for r in range(wire.size)), torch.zeros(shape, dtype=torch.int64))
            expected = total.to(dtype).flatten().tensor_split(wire.size)[wire.rank]
            torch.testing.assert_close(mine, expected, rtol=0, atol=0)
    return b""


def check_reduce_scatter_adds_in_order(wire: Wire) -> bytes:
    values = torch.tensor([1e8 if r % 3 == 0 else (3.0 if r % 3 == 1 else -1e8) for r in range(wire.size)])
    mine = wire.reduce_scatter(values[wire.rank].repeat(wire.size)).wait()
    total = values[0].clone()
    for value in values[1:]:
        total += value
    assert mine.tolist() == [total.item()]
    return bits(mine)


def check_all_gather(wire: Wire) -> bytes:
    for dtype in MOVED:
        for shape in ((), (3,), (2, 2)):
            found = wire.all_gather(ramp(wire.rank, dtype, shape)).wait()
            assert [x.tolist() for x in found] == [ramp(r, dtype, shape).tolist() for r in range(wire.size)]
            assert all(x.dtype == dtype and x.shape == shape for x in found)
    return b""


def check_ragged_all_gather(wire: Wire) -> bytes:
    shapes = [(), (0,), (2, 3), (4,), (0, 5)]
    mine = ramp(wire.rank, torch.float32, shapes[wire.rank % 5])
    found = wire.all_gather(mine).wait()
    for rank, x in enumerate(found):
        assert x.equal(ramp(rank, torch.float32, shapes[rank % 5]))
        assert x.shape == shapes[rank % 5]
    before = bits(*found)
    mine.fill_(99)
    found[0].add_(1)
    assert bits(*found[1:]) == bits(*(ramp(r, torch.float32, shapes[r % 5]) for r in range(1, wire.size)))
    return before


def check_all_to_all(wire: Wire) -> bytes:
    def piece(sender: int, receiver: int) -> Tensor:
        return torch.full(((sender + receiver) % 3,), float(sender * 100 + receiver))

    found = wire.all_to_all([piece(wire.rank, r) for r in range(wire.size)]).wait()
    assert [x.tolist() for x in found] == [piece(r, wire.rank).tolist() for r in range(wire.size)]
    return b""


def check_what_is_shared_arrives(wire: Wire) -> bytes:
    """Large enough that workers of one host read it where it lies; nobody changes it."""
    numel = 20_000

    def piece(sender: int, receiver: int) -> Tensor:
        return wire.empty(numel, torch.float32).fill_(sender * 100 + receiver)

    for _ in range(3):
        pieces = [piece(wire.rank, r) for r in range(wire.size)]
        swapped = wire.all_to_all(pieces, shared=True)
        mine = wire.empty(numel + wire.rank, torch.float32).fill_(wire.rank)
        gathered = wire.all_gather(mine, shared=True).wait()
        assert all(x.equal(piece(r, wire.rank)) for r, x in enumerate(swapped.wait()))
        assert all(x.equal(torch.full((numel + r,), float(r))) for r, x in enumerate(gathered))
    return b""


def check_all_to_all_single(wire: Wire) -> bytes:
    """Of few numbers and many, in memory that is shared and in other memory, which others take for something else
    once everyone has looked."""
    for dtype in MOVED:
        for numel in (0, 1, 70, 300):
            for _ in range(2):
                found = wire.all_to_all_single(ramp(wire.rank, dtype, (numel,))).wait()
                mine = own(wire, wire.rank, numel)
                for rank, x in enumerate(found):
                    assert x.dtype == dtype
                    assert x.tolist() == ramp(rank, dtype, (numel,))[mine.start : mine.stop].tolist()
    kept = [(turn, wire.all_to_all_single(torch.full((300,), 10.0 * turn + wire.rank)).wait()) for turn in range(9)]
    assert all(x.eq(10.0 * turn + rank).all() for turn, found in kept for rank, x in enumerate(found))
    for turn in range(6):
        vectors = [wire.empty(250_000, torch.float32), wire.empty(300_000, torch.bfloat16), torch.zeros(250_001)]
        for x in vectors:
            x.fill_(10.0 * turn + wire.rank)
        works = [wire.all_to_all_single(x) for x in vectors]
        for x, work in zip(vectors, works, strict=True):
            mine, found = own(wire, wire.rank, len(x)), work.wait()
            assert all(y.dtype == x.dtype and len(y) == len(mine) for y in found)
            assert all(y.eq(10.0 * turn + rank).all() for rank, y in enumerate(found))
            before = x.clone()
            sums = torch.stack([y.float() for y in found]).sum(0)
            wire.all_gather_into(x, writes(sums.to(x.dtype))).wait()
            wire.all_reduce(before).wait()
            assert x.equal(before)
    return b""


def check_all_gather_into(wire: Wire) -> bytes:
    """Of few numbers and many, in memory that is shared and in other memory; twice, and several at a time."""
    for dtype in MOVED:
        for numel in (0, 1, 70, 300):
            for _ in range(2):
                x, mine = torch.zeros(numel, dtype=dtype), ramp(wire.rank, dtype, (len(own(wire, wire.rank, numel)),))
                assert wire.all_gather_into(x, writes(mine)).wait() is x
                assert x.tolist() == [
                    y for r in range(wire.size) for y in ramp(r, dtype, (len(own(wire, r, numel)),)).tolist()
                ]
    for turn in range(3):
        vectors = [wire.empty(250_000, torch.float32), wire.empty(300_000, torch.bfloat16), torch.zeros(250_001)]
        for x in vectors:
            x.fill_(-1.0)
        pieces = [torch.full((len(own(wire, wire.rank, len(x))),), 10.0 * turn + wire.rank) for x in vectors]
        works = [wire.all_gather_into(x, writes(mine.to(x.dtype))) for x, mine in zip(vectors, pieces, strict=True)]
        for x, work in zip(vectors, works, strict=True):
            assert work.wait() is x
            assert all(x[list(here)[:1] + list(here)[-1:]].eq(10.0 * turn + r).all() for r, here in cut(wire, len(x)))
            assert x.double().sum() == sum(len(here) * (10.0 * turn + r) for r, here in cut(wire, len(x)))
    return b""


def writes(mine: Tensor) -> Write:
    """Writes just that."""

    def write(into: Sequence[Tensor]) -> None:
        for x in into:
            x.copy_(mine)

    return write


def check_pieces_are_made_where_they_lie(wire: Wire) -> bytes:
    """Each worker makes its piece of the pieces of all, once, in its own thread; and they may lie in one memory."""
    for numel in (0, 70, 1000, 300_000):
        given = [wire.empty(numel, torch.float32), torch.zeros(numel)]
        for x in given:
            x.copy_(torch.arange(numel) + wire.rank)
            half = HalfOf(wire.all_to_all_single(x).wait())
            work = wire.all_gather_into(x, half)
            wire.clock.sleep(0.02)  # a thread beside may move on what is under way
            assert work.wait() is x
            expected = 0.5 * (wire.size * torch.arange(numel) + sum(range(wire.size)))
            assert torch.equal(x, expected.float())
            assert half.called_in == [threading.get_ident()]
    return b""


class HalfOf:
    """Writes half of the sum of these, which may be where it is written to."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        self._given, self.called_in = given, list[int]()

    def __call__(self, into: Sequence[Tensor]) -> None:
        self.called_in.append(threading.get_ident())
        half = 0.5 * torch.stack(list(self._given)).sum(0)
        for x in into:
            x.copy_(half)


def own(wire: Wire, rank: int, numel: int) -> range:
    """The piece of a rank."""
    return range(numel)[piece(numel, rank, wire.size)]


def cut(wire: Wire, numel: int) -> list[tuple[int, range]]:
    """The pieces of all ranks that have one."""
    return [(rank, own(wire, rank, numel)) for rank in range(wire.size) if own(wire, rank, numel)]


def _roots(wire: Wire) -> list[int]:
    return sorted({0, wire.size // 2, wire.size - 1})


def check_broadcast(wire: Wire) -> bytes:
    for root in _roots(wire):
        for dtype in MOVED:
            for shape in ((), (0,), (3, 2)):
                x = ramp(wire.rank, dtype, shape)
                assert wire.broadcast(x, root).wait() is x
                assert x.equal(ramp(root, dtype, shape))
        strided = torch.full((2, 4), float(wire.rank))
        wire.broadcast(strided[:, ::2], root).wait()
        assert strided.tolist() == [[root, wire.rank, root, wire.rank]] * 2
    return b""


def check_reduce(wire: Wire) -> bytes:
    for root in _roots(wire):
        for dtype in SUMMED:
            x = ramp(wire.rank, dtype, (3,))
            wire.reduce(x, root).wait()
            if wire.rank == root:
                total = sum((ramp(r, torch.int64, (3,)) for r in range(wire.size)), torch.zeros(3, dtype=torch.int64))
                torch.testing.assert_close(x, total.to(dtype), rtol=0, atol=0)
    return b""


def check_gather(wire: Wire) -> bytes:
    for root in _roots(wire):
        found = wire.gather(torch.full((wire.rank % 3,), wire.rank), root).wait()
        if wire.rank == root:
            assert found is not None
            assert [x.tolist() for x in found] == [[r] * (r % 3) for r in range(wire.size)]
        else:
            assert found is None
    return b""


def check_scatter(wire: Wire) -> bytes:
    for root in _roots(wire):
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            pieces = [torch.full((r % 3, 2), r + root, dtype=dtype) for r in range(wire.size)]
            mine = wire.scatter(pieces if wire.rank == root else None, root).wait()
            assert mine.equal(pieces[wire.rank])
            assert mine.dtype == dtype
    return b""


def check_barrier(wire: Wire) -> bytes:
    for turn in range(3):
        wire.board.add(f"barrier/{turn}")
        wire.barrier().wait()
        assert wire.board.add(f"barrier/{turn}", 0) == wire.size
    return b""


def check_many_in_flight(wire: Wire) -> bytes:
    works = [wire.all_reduce(torch.full((4,), float(k))) for k in range(10)]
    gathered = wire.all_gather(torch.tensor([wire.rank]))
    shared = wire.broadcast(torch.tensor([wire.rank]), wire.size - 1)
    assert shared.wait().item() == wire.size - 1
    assert [x.item() for x in gathered.wait()] == list(range(wire.size))
    for k in reversed(range(10)):
        assert works[k].wait().eq(k * wire.size).all()
        assert works[k].done()
        assert works[k].wait() is works[k].wait()
    return b""


def check_channels_have_orders_of_their_own(wire: Wire) -> bytes:
    one, other = wire.channel("one"), wire.channel("other")
    assert (one.rank, one.size) == (wire.rank, wire.size)
    channels = [one, other] if wire.rank % 2 else [other, one]
    works = {c.name: c.all_reduce(torch.tensor([1.0 if c is one else 10.0])) for c in channels}
    third = wire.all_reduce(torch.tensor([100.0]))
    assert works[one.name].wait().item() == wire.size
    assert works[other.name].wait().item() == 10 * wire.size
    assert third.wait().item() == 100 * wire.size
    again = wire.channel("one").all_reduce(torch.tensor([2.0]))
    assert again.wait().item() == 2 * wire.size
    return b""


def check_groups(wire: Wire) -> bytes:
    alone = wire.group([wire.rank])
    assert (alone.rank, alone.size) == (0, 1)
    assert alone.all_reduce(torch.tensor([3.0])).wait().item() == 3.0
    everyone = wire.group(list(reversed(range(wire.size))))
    assert everyone.rank == wire.size - 1 - wire.rank
    total = everyone.all_reduce(torch.tensor([float(wire.rank)])).wait()
    assert total.item() == wire.size * (wire.size - 1) / 2
    assert everyone.broadcast(torch.tensor([wire.rank]), 0).wait().item() == wire.size - 1
    assert [x.item() for x in everyone.all_gather(torch.tensor(wire.rank)).wait()] == list(reversed(range(wire.size)))
    everyone.barrier().wait()
    pairs = [(low, low + 1) for low in (wire.rank - 1, wire.rank) if low >= 0 and low + 1 < wire.size]
    works = [(pair, wire.group(pair).all_reduce(torch.tensor([wire.rank]))) for pair in pairs]
    for (low, high), work in reversed(works):
        assert work.wait().item() == low + high, "groups that overlap do not disturb each other"
    return bits(total)


def check_large_sums_of_groups(wire: Wire) -> bytes:
    """In halves: workers wait for them in different orders, and the order of addition is that of the group."""
    some = wire.group(list(reversed(range(wire.size))))
    given = [_uneven(wire.rank, number, 20_001 + 64 * number) for number in range(3)]
    sums = [some.all_reduce(x.clone()) for x in given]
    beside = wire.all_reduce(torch.ones(3))
    found = list[torch.Tensor]([torch.empty(0)] * 3)
    for number in (0, 1, 2) if wire.rank % 2 else (2, 1, 0):
        found[number] = sums[number].wait()
    assert beside.wait().tolist() == [wire.size] * 3
    hosts = [some.host_of(rank) for rank in range(wire.size)]
    for x, total in zip(given, found, strict=True):
        assert torch.equal(total, sum_in_order(some.all_gather(x).wait(), hosts))
    assert all(work.done() for work in sums)
    rounded = _uneven(wire.rank, 3, 40_001).bfloat16()
    found.append(some.all_reduce(rounded.clone()).wait())
    assert torch.equal(found[-1], sum_in_order(some.all_gather(rounded).wait(), hosts))
    return bits(torch.stack([x.double().sum() for x in found]))


def _uneven(rank: int, number: int, numel: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(numel, generator=draw) * 3.0**rank


def check_a_leaf_that_requires_gradients(wire: Wire) -> bytes:
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        wire.all_reduce(x).wait()
        wire.broadcast(x).wait()
    gathered = wire.all_gather(x).wait()
    assert x.requires_grad
    assert x.grad_fn is None
    assert x.tolist() == [wire.size] * 3
    assert not any(y.requires_grad for y in gathered)
    return bits(x)


def check_tell_all(wire: Wire) -> bytes:
    values = wire.tell_all("ranks", {"rank": wire.rank, "text": "é"}).wait()
    assert values == [{"rank": rank, "text": "é"} for rank in range(wire.size)]
    return repr(values).encode()
