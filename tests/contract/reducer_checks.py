"""What every reducer must do, on any wire of any size. A check returns bytes that must be equal on all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire, Work
from quorate.core.errors import Mismatch, PeerFailed, WireTimeout
from quorate.core.vectors import Flat, Layout, Part
from quorate.means import reducers
from quorate.means.reducer import InParts
from quorate.wire.exchange import sum_in_order
from tests.contract.collective_checks import bits
from tests.support.delayed import Delayed

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.complex64)
PARTS = layout_of([(name, torch.zeros(5)) for name in "abc"], header=2, part_bytes=20, first_part_bytes=20)
"""Three parts."""


def of_one_part(numel: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout((), (Part(numel, dtype, torch.device("cpu")),), 0)


def noise(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Other numbers for each rank, whose sum depends on the order in which they are added."""
    draw = torch.Generator().manual_seed(rank + 1)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, 100, (numel,), generator=draw).to(dtype)
    return torch.randn(numel, generator=draw, dtype=dtype if dtype.is_complex else torch.float32).to(dtype)


def lengths(size: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((0, 1, max(0, size - 1), size, 37, 2501)))


def of(name: str, wire: Wire, layout: Layout = PARTS) -> InParts:
    """The reducer of this name, on a channel of its own: a wire has one at a time."""
    return reducers.get(name)(layout, wire.channel(f"{name} {wire.board.add(f'checks/{wire.rank}')}"))


def check_sums(name: str, wire: Wire) -> bytes:
    """Of numbers of all lengths and types, equal to the wire's own but for the order of adding."""
    found = []
    for dtype in TYPES:
        for numel in lengths(wire.size) if dtype == torch.float32 else (37,):
            x = noise(wire.rank, numel, dtype)
            is_small = dtype.is_floating_point and dtype.itemsize < 4 and name != "dense"
            expected = wire.all_reduce(x.float() if is_small else x.clone()).wait().to(dtype)
            work = of(name, wire, of_one_part(numel, dtype)).start(Flat([x], of_one_part(numel, dtype)))
            assert work.wait().parts[0] is x, "it is written into the vector itself"
            assert work.done()
            torch.testing.assert_close(x, expected)
            found.append(x)
    return bits(*found)


def check_small_floats_are_rounded_once(name: str, wire: Wire) -> bytes:
    for dtype, large in ((torch.bfloat16, 256.0), (torch.float16, 2048.0)):
        x = torch.full((wire.size + 3,), large if wire.rank == 0 else 1.0, dtype=dtype)
        of(name, wire).again(0, x).wait()
        given = [torch.tensor([large if rank == 0 else 1.0]).to(dtype) for rank in range(wire.size)]
        hosts = [wire.host_of(rank) for rank in range(wire.size)] if name == "dense" else []
        assert x.eq(sum_in_order(given, hosts)).all(), "added in the small type, each 1 is lost"
    return b""


def check_parts_and_sums_under_way(name: str, wire: Wire) -> bytes:
    """Parts that leave before the rest, one on its own afterwards, some for nothing, and two vectors at once."""
    reducer, total = of(name, wire), wire.size * (wire.size + 1) / 2

    def vector(factor: float) -> Flat:
        x = Flat.zeros(PARTS)
        for part in x.parts:
            part.fill_(factor * (wire.rank + 1))
        return x

    first, second, third = vector(1.0), vector(10.0), vector(100.0)
    reducer.part_ready(0, first.parts[0])
    reducer.part_ready(1, first.parts[1])
    works: list[Work[Flat]] = [reducer.start(first, reducer.kept(first)), reducer.start(second)]
    reducer.part_ready(0, third.parts[0])
    reducer.abandon(third).wait()
    assert third.parts[0].eq(100.0 * total).all()
    for factor, work in zip((10.0, 1.0), reversed(works), strict=True):
        assert all(part.eq(factor * total).all() for part in work.wait().parts)
        assert work.wait() is work.wait()
    again = torch.full((5,), wire.rank + 1.0)
    assert reducer.again(1, again).wait() is again
    assert again.eq(total).all()
    strided = torch.full((3, 4), wire.rank + 1.0)[:, ::2]
    reducer.again(0, strided).wait()
    assert strided.eq(total).all()
    longer = Flat([torch.ones(7), torch.ones(1)], Layout((), (*of_one_part(7).parts, *of_one_part(1).parts), 0))
    assert all(part.eq(wire.size).all() for part in reducer.start(longer).wait().parts), "of any layout"
    assert reducer.counted == wire.size
    return bits(*first.parts, *second.parts)


def check_two_at_once(name: str, wire: Wire) -> bytes:
    """Two reducers, which workers use in different orders."""
    both = [of(name, wire), of(name, wire)]
    x = [torch.ones(9), torch.full((9,), 2.0)]
    order = (0, 1) if wire.rank % 2 else (1, 0)
    works = {k: both[k].again(0, x[k]) for k in order}
    for k in order:
        works[k].wait()
    assert [float(one[0]) for one in x] == [wire.size, 2.0 * wire.size]
    return bits(*x)


def one_dies_between(name: str, dead: int, wire: Wire) -> tuple[str, tuple[int, ...], float] | None:
    """Worker `dead` crashes after the first of two sums; what the others see of the second: error, ranks, seconds."""
    reducer = of(name, wire)
    reducer.again(0, torch.ones(50)).wait()
    if wire.rank == dead:
        wire.crash()
    begin = wire.clock.now()
    works = [reducer.again(0, torch.ones(50)) for _ in range(2)]
    try:
        works[1].wait()
    except PeerFailed as error:
        seconds = wire.clock.now() - begin
        try:
            works[0].wait()
        except PeerFailed:
            return "PeerFailed", error.ranks, seconds
    return None


def one_dies_within(name: str, dead: int, wire: Wire) -> tuple[str, tuple[int, ...], float] | None:
    """Worker `dead` crashes in its fourth call of its wire, between two messages of the first of two sums; as above.

    Some may have all that they need for the first one.
    """

    def crash(operation: str, number: int) -> float:
        if number == 4:
            wire.crash()
        return 0.0

    wire.barrier().wait()  # nobody dies while another one still joins
    begin = wire.clock.now()
    own = Delayed(wire, crash) if wire.rank == dead else wire
    try:
        reducer = reducers.get(name)(PARTS, own)
        for work in [reducer.again(0, torch.ones(50_000)) for _ in range(2)]:
            work.wait()
    except PeerFailed as error:
        return "PeerFailed", error.ranks, wire.clock.now() - begin
    return None


def one_is_late(name: str, wire: Wire) -> tuple[str, tuple[int, ...], float]:
    """The last worker comes when the others have waited in vain; then the sum goes on. What the others saw; the sum."""
    reducer, x = of(name, wire), torch.ones(8)
    wire.barrier().wait()
    seen: tuple[str, tuple[int, ...]] = ("", ())
    if wire.rank == wire.size - 1:
        wire.clock.sleep(100.0)  # longer than the task waits at once
    work = reducer.again(0, x)
    try:
        work.wait(0.2 if wire.rank < wire.size - 1 else None)
    except WireTimeout as error:
        seen = "WireTimeout", error.ranks
    return *seen, float(work.wait()[0])


def one_sums_something_else(name: str, how: str, wire: Wire) -> str:
    """The last worker's vector has another length or type."""
    is_odd = wire.rank == wire.size - 1
    x = torch.ones(7 if is_odd and how == "length" else 8, dtype=torch.float64 if is_odd and how == "type" else None)
    try:
        of(name, wire).again(0, x).wait()
    except Mismatch as error:
        return str(error)
    return ""
