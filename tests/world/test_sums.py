"""Sums in shared memory among real processes: their bits, and what becomes of them when a worker dies or parts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.errors import Mismatch, PeerFailed, QuorateError, WireTimeout
from quorate.wire.exchange import sum_in_order
from quorate.wire.real.shared import is_possible
from quorate.wire.real.shared_segment import SLOTS, small_bytes
from quorate.wire.real.wire import RealWire
from tests.support.processes import outcomes_real, run_real
from tests.support.sampled import Few

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system has no memory that processes can share")

LARGE = small_bytes(2) // 4 + 13
"""Of float32: more than a slot holds, and no multiple of anything."""
TYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
OFTEN = (torch.float32, torch.bfloat16, torch.int64, torch.complex64)
"""Those that are tried with many numbers, too."""


def noise(rank: int, numel: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return numbers of very different sizes, so that the order in which they are added shows."""
    return _drawn(rank, numel, dtype, seed).clone()


@cache
def _drawn(rank: int, numel: int, dtype: torch.dtype, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(rank + 1000 * seed)
    if dtype.is_complex:
        half = torch.float32 if dtype == torch.complex64 else torch.float64
        return torch.complex(noise(rank, numel, half, seed), noise(rank, numel, half, seed + 7))
    if not dtype.is_floating_point:
        return torch.randint(0, 2 if dtype == torch.bool else 100, (numel,), generator=draw).to(dtype)
    wide = torch.randn(numel, generator=draw) * 10 ** torch.randint(-3, 4, (numel,), generator=draw)
    return wide.to(dtype)


@cache
def in_order(size: int, numel: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return sum_in_order([noise(rank, numel, dtype, seed) for rank in range(size)])


def is_same(a: Tensor, b: Tensor) -> bool:
    """Whether all bits are; of complex numbers, whose zeros torch gives another sign when it adds, the values."""
    if a.is_complex():
        return a.equal(b)
    plain = torch.empty(a.shape, dtype=a.dtype).copy_(a)
    return plain.view(torch.uint8).equal(b.view(torch.uint8))


def sums_of(dtypes: Sequence[torch.dtype], kind: Callable[[Tensor], Tensor], wire: Wire) -> list[str]:
    """What was not as it should be; the first sum of each kind travels in messages, the later ones do not."""
    wrong = []
    for dtype in dtypes:
        large = (70_000, LARGE) if dtype in OFTEN else ()
        for numel in (0, 1, wire.size - 1, wire.size + 1, 1000, *large):
            for turn in range(3):
                x = kind(noise(wire.rank, numel, dtype, turn))
                found = wire.all_reduce(x).wait()
                if found is not x or not is_same(x, in_order(wire.size, numel, dtype, turn)):
                    wrong.append(f"{dtype} {numel} turn {turn}")
    assert isinstance(wire, RealWire)
    assert wire._sums is not None
    assert not wire._groups, "a backend was used"
    return wrong


def as_it_is(x: Tensor) -> Tensor:
    return x


def strided(x: Tensor) -> Tensor:
    return torch.stack([x, x], dim=1)[:, 0]


@pytest.mark.parametrize("size", [2, 3])
def test_every_type_and_size_is_added_in_order_of_rank(size: int, few: Few) -> None:
    assert run_real(size, partial(sums_of, few(TYPES), as_it_is)) == [[]] * size


def test_strided_tensors_too(few: Few) -> None:
    assert run_real(3, partial(sums_of, few(TYPES), strided)) == [[]] * 3


@cache
def drawn_bits(seed: int) -> Tensor:
    return torch.randint(0, 256, (8 << 20,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def broadcasts(wire: Wire) -> list[str]:
    """Those whose bits are not the root's, of any bits (some are no numbers) and of memory that is no whole words."""
    wrong = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int16, torch.bool):
        for numel in (3, 64, 1 << 16, 1 << 20):
            for root in (0, wire.size - 1):
                for turn in range(4):  # the first two go by messages
                    bits = drawn_bits(root + 7 * turn)[: numel * dtype.itemsize]
                    given = bits.gt(127)[:numel] if dtype == torch.bool else bits.view(dtype)
                    x = given.clone() if wire.rank == root else torch.ones_like(given)
                    assert wire.broadcast(x, root).wait() is x
                    if not torch.equal(x.view(torch.uint8), given.view(torch.uint8)):
                        wrong.append(f"{dtype} {numel} from {root}, turn {turn}")
    return wrong


def test_a_broadcast_has_the_bits_of_the_root() -> None:
    assert run_real(3, broadcasts) == [[]] * 3


def broadcasts_what_all_share(x: Tensor, wire: Wire) -> Tensor:
    for _ in range(4):
        wire.broadcast(x, 0).wait()
    return x.clone()


def test_memory_that_workers_share_can_be_broadcast() -> None:
    x = noise(0, 1 << 20, torch.float32).share_memory_()
    for each in run_real(2, partial(broadcasts_what_all_share, x)):
        assert torch.equal(each, noise(0, 1 << 20, torch.float32))


def many_at_once(wire: Wire) -> list[str]:
    """More than there are slots, of all kinds, on two channels that the workers use in different orders."""
    numels = [(5, LARGE, 2 * LARGE)[k % 3] for k in range(2 * SLOTS + 3)]
    seeds = {"one": 0, "other": 100}
    lent = {name: [wire.empty(numel, torch.float32) for numel in numels] for name in seeds}
    wrong = []
    for turn in range(3):
        works = {}
        for name in sorted(seeds, reverse=wire.rank % 2 == 0):
            channel, works[name] = wire.channel(name), []
            for k, numel in enumerate(numels):
                x = noise(wire.rank, numel, torch.float32, seeds[name] + k)
                works[name].append(channel.all_reduce(lent[name][k].copy_(x) if turn % 2 else x))
        for name, seed in seeds.items():
            for k in reversed(range(len(numels))):
                if not is_same(works[name][k].wait(), in_order(wire.size, numels[k], torch.float32, seed + k)):
                    wrong.append(f"{name} {k} turn {turn}")
    return wrong


def test_many_at_once_on_two_channels() -> None:
    assert run_real(3, many_at_once) == [[]] * 3


def memory_that_moves(wire: Wire) -> list[int]:
    """Sums of tensors that lie elsewhere each time, and are let go of; returns how many places are remembered."""
    known = []
    for turn in range(12):
        x = wire.empty(LARGE, torch.float32).copy_(noise(wire.rank, LARGE, torch.float32, turn))
        assert is_same(wire.all_reduce(x).wait(), in_order(wire.size, LARGE, torch.float32, turn))
        del x
        assert isinstance(wire, RealWire)
        if wire._sums is not None:
            known.append(max(len(one.places) for one in wire._sums._segment.blocks()))
    return known


def test_memory_that_was_let_go_of_is_forgotten() -> None:
    for known in run_real(2, memory_that_moves):
        assert max(known) <= 2


def nobody_waits(wire: Wire) -> bool:
    """Rank 0 calls a sum and waits for something else; the others have it all the same."""
    for _ in range(2):
        wire.all_reduce(torch.ones(LARGE)).wait()
    work = wire.all_reduce(torch.full((LARGE,), float(wire.rank)))
    told = wire.receive(None, "done")
    if wire.rank:
        work.wait()
        wire.send(Message(), 0, "done").wait()
    else:
        for _ in range(wire.size - 1):
            told.wait(timeout=20)
            told = wire.receive(None, "done")
    total = wire.size * (wire.size - 1) / 2
    return bool(work.wait().eq(total).all())


def test_a_sum_is_under_way_whoever_waits_first() -> None:
    assert run_real(3, nobody_waits) == [True] * 3


def in_inference_mode(wire: Wire) -> list[bool]:
    """Tensors made there, and sums outside of it afterwards."""
    right = []
    for numel in (3, LARGE):
        for turn in range(4):
            with torch.inference_mode(turn < 3):
                x = torch.full((numel,), float(wire.rank))
                right.append(bool(wire.all_reduce(x).wait().eq(1.0).all()))
    return right


def test_in_inference_mode() -> None:
    assert run_real(2, in_inference_mode) == [[True] * 8] * 2


@dataclass(frozen=True)
class Seen:
    """An error as a worker saw it."""

    kind: type[BaseException]
    ranks: tuple[int, ...]
    seconds: float
    sentence: str


def seen(wire: Wire, wait: Callable[[], object]) -> Seen | None:
    begin = wire.clock.now()
    try:
        wait()
    except QuorateError as error:
        return Seen(type(error), tuple(getattr(error, "ranks", ())), wire.clock.now() - begin, str(error))
    return None


def warmed(wire: Wire, *numels: int) -> None:
    """Sums of these have been taken together before, one after the other in any order."""
    for a in numels:
        for b in numels:
            for numel in (a, b, a):
                wire.all_reduce(torch.zeros(numel)).wait()


def one_is_killed(numel: int, how: str, wire: Wire) -> Seen | None:
    """The last worker dies before it comes to the sum, or when it has called it and does no part of it."""
    warmed(wire, numel)
    if wire.rank == wire.size - 1:
        if how == "called":
            assert isinstance(wire, RealWire)
            assert wire._sums is not None
            wire._sums._segment.untold = lambda number: [0]  # type: ignore[method-assign]
            wire.all_reduce(torch.ones(numel))
        wire.crash()
    return seen(wire, lambda: wire.all_reduce(torch.ones(numel)).wait())


@pytest.mark.parametrize(("numel", "how"), [(3, "absent"), (LARGE, "absent"), (LARGE, "called")])
def test_a_death_ends_the_sum_of_all_others(numel: int, how: str) -> None:
    for outcome in outcomes_real(3, partial(one_is_killed, numel, how))[:2]:
        assert outcome.result is not None, outcome
        assert (outcome.result.kind, outcome.result.ranks) == (PeerFailed, (2,)), "no wait was for its limit"


def one_comes_late_to_a_sum_that_failed(wire: Wire) -> bool:
    """Rank 2 dies in a sum for which all numbers were there; rank 1 would do its part after rank 0 has left it."""
    assert isinstance(wire, RealWire)
    x = wire.empty(LARGE, torch.float32).fill_(1.0)
    for _ in range(3):
        wire.all_reduce(x).wait()
    assert wire._sums is not None
    segment = wire._sums._segment
    if wire.rank:
        plain, segment.untold = segment.untold, lambda number: [0]  # type: ignore[method-assign]
    work = wire.all_reduce(x.fill_(1.0))
    if wire.rank == 2:
        wire.crash()
    found = seen(wire, work.wait)
    assert found is not None
    assert found.kind is PeerFailed
    if wire.rank == 1:
        segment.untold = plain  # type: ignore[method-assign]
        while wire.board.get("left") is None:
            wire.clock.sleep(0.005)
        wire._sums.help()
        wire.board.set("tried", b"1")
        return True
    x.fill_(7.0)
    wire.board.set("left", b"1")
    while wire.board.get("tried") is None:
        wire.clock.sleep(0.005)
    return bool(x.eq(7.0).all())


def test_nobody_writes_into_the_numbers_of_others_once_a_sum_has_failed() -> None:
    found = outcomes_real(3, one_comes_late_to_a_sum_that_failed)
    assert [one.result for one in found] == [True, True, None], found


def workers_part(wire: Wire) -> Seen | None:
    """All steps have been taken before, and now one worker takes another one than the rest."""
    warmed(wire, 3, 5, LARGE)
    return seen(wire, lambda: wire.all_reduce(torch.ones(LARGE if wire.rank == 1 else 5)).wait())


def test_workers_that_part_where_both_ways_are_known_all_hear_of_it() -> None:
    for found in run_real(3, workers_part):
        assert found is not None
        assert found.kind is Mismatch
        assert "rank 1 all_reduce" in found.sentence


def one_stands_still(wire: Wire) -> list[Seen | None]:
    """The last worker is stopped for a while; a wait that ends sooner names it, and the next one gets the sum."""
    found = []
    for numel in (3, LARGE):
        for _ in range(2):
            warmed(wire, numel)
            wire.barrier().wait()
        if wire.rank == wire.size - 1:
            subprocess.Popen(["sh", "-c", f"sleep 0.6; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        work = wire.all_reduce(torch.ones(numel))
        found.append(None if wire.rank == wire.size - 1 else seen(wire, partial(work.wait, timeout=0.2)))
        assert work.wait().eq(wire.size).all()
    return found


def test_a_timeout_names_who_was_waited_for() -> None:
    for of_rank in run_real(3, one_stands_still)[:2]:
        for found in of_rank:
            assert found is not None
            assert (found.kind, found.ranks) == (WireTimeout, (2,))
            assert "rank 2 in all_reduce float32" in found.sentence
