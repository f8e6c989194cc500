"""Sums among processes of several hosts: their bits, what goes through the cables, and what becomes of them when a
worker or a host dies, stands still or parts from the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.errors import Mismatch, PeerFailed, QuorateError, WireTimeout
from quorate.wire.exchange import sum_in_order
from quorate.wire.real.host_sums import HostSums
from quorate.wire.real.shared import is_possible
from quorate.wire.real.shared_segment import SLOTS
from quorate.wire.real.wire import RealWire
from tests.contract.worlds import WorkersOnHosts, in_words
from tests.support.cut_trainings import CutTraining
from tests.support.hosts import are_possible, hosts
from tests.support.processes import run_real

on_hosts = pytest.mark.on_hosts
pytestmark = pytest.mark.skipif(
    not (are_possible() and is_possible()), reason="needs root on Linux, to make network namespaces"
)

LAYOUTS = [WorkersOnHosts(layout) for layout in ((2, 1), (2, 2), (1, 1, 1), (1, 1, 2))]
MEDIUM, LARGE = 17_001, 300_013
"""Of float32: more than is sent whole, and more than a slot holds; no multiples of anything."""
NUMELS = (1, 5, 1000, MEDIUM, LARGE)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)
STEPS = 6


def noise(rank: int, numel: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Numbers of very different sizes, so that the order in which they are added shows."""
    draw = torch.Generator().manual_seed(rank + 1000 * seed)
    if dtype.is_complex:
        return torch.complex(noise(rank, numel, seed=seed), noise(rank, numel, seed=seed + 7))
    if not dtype.is_floating_point:
        return torch.randint(0, 2 if dtype == torch.bool else 100, (numel,), generator=draw).to(dtype)
    return (torch.randn(numel, generator=draw) * 10 ** torch.randint(-3, 4, (numel,), generator=draw)).to(dtype)


def in_order(layout: tuple[int, ...], numel: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """As it is promised: on each host in order of rank, then in order of hosts; small floats rounded after each."""
    by_host, rank = [], 0
    for count in layout:
        wide = torch.float32 if dtype.itemsize == 2 else dtype
        on_host = [noise(rank + k, numel, dtype, seed).to(wide) for k in range(count)]
        total = sum_in_order(on_host)
        by_host.append(total if len(layout) == 1 else total.to(dtype).to(wide))
        rank += count
    return sum_in_order(by_host).to(dtype)


def is_same(a: Tensor, b: Tensor) -> bool:
    """Whether all bits are; of complex numbers, whose zeros may differ in sign, the values."""
    plain = torch.empty(a.shape, dtype=a.dtype).copy_(a)
    return a.equal(b) if a.is_complex() else plain.view(torch.uint8).equal(b.view(torch.uint8))


def through_the_cable() -> tuple[int, int]:
    """Bytes that this host has been sent, and has sent."""
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if "cable" in line]
    numbers = line.split(":")[1].split()
    return int(numbers[0]), int(numbers[8])


def sums_of(layout: tuple[int, ...], wire: Wire) -> tuple[list[str], float]:
    """What was not as promised; and the bytes of large sums through this host's cable, over those of the tensor."""
    wrong = []
    for dtype in TYPES:
        for numel in (0, *NUMELS):
            lies = [noise(wire.rank, numel, dtype), wire.empty(numel, dtype)]
            for turn, x in enumerate([*lies, lies[1], torch.stack([lies[0]] * 2, dim=1)[:, 0]]):
                x.copy_(noise(wire.rank, numel, dtype, turn))
                found = wire.all_reduce(x).wait()
                if found is not x or not is_same(x, in_order(layout, numel, dtype, turn)):
                    wrong.append(f"{dtype} {numel} turn {turn}")
    assert isinstance(wire, RealWire) and isinstance(wire._sums, HostSums)
    assert not wire._groups, "a backend was used"
    seeds = {"one": 0, "other": 100}
    numels = [NUMELS[k % len(NUMELS)] for k in range(2 * SLOTS + 3)]
    for turn in range(2):  # more than there are slots, on two channels that the workers use in different orders
        works: dict[str, list[Any]] = {}
        for name in sorted(seeds, reverse=wire.rank % 2 == 0):
            xs = [noise(wire.rank, numel, seed=seeds[name] + k) for k, numel in enumerate(numels)]
            works[name] = [wire.channel(name).all_reduce(x) for x in xs]
        for name, seed in seeds.items():
            for k in reversed(range(len(numels))):
                if not is_same(works[name][k].wait(), in_order(layout, numels[k], seed=seed + k)):
                    wrong.append(f"{name} {k} turn {turn}")
    x = wire.empty(4 * LARGE, torch.float32)
    wire.barrier().wait()
    before = through_the_cable()
    for _ in range(STEPS):
        wire.all_reduce(x.fill_(1.0)).wait()
    share = max(now - then for now, then in zip(through_the_cable(), before, strict=True)) / (16 * LARGE * STEPS)
    wire.barrier().wait()
    return wrong, share


@pytest.mark.parametrize(
    "workers", [LAYOUTS[0], *(pytest.param(one, marks=on_hosts) for one in LAYOUTS[1:])], ids=in_words
)
def test_every_type_and_size_is_added_in_the_order_of_the_layout(workers: WorkersOnHosts) -> None:
    """Of H hosts each sends and gets 2 (H - 1) / H of a tensor; in a ring of P workers it would be 2 (P - 1) / P."""
    count = len(workers.layout)
    for wrong, share in workers.run(partial(sums_of, workers.layout)):
        assert wrong == []
        assert share == pytest.approx(2 * (count - 1) / count, rel=0.12)


def seen(wait: Callable[[], object]) -> tuple[type[BaseException], tuple[int, ...], str] | None:
    """The error of a wait: its type, its ranks, what it says."""
    try:
        wait()
    except QuorateError as error:
        return type(error), tuple(getattr(error, "ranks", ())), str(error)
    return None


def one_is_killed(how: str, wire: Wire) -> object:
    """The last worker dies before it comes to a sum, or when it has called it and does no part of it."""
    for _ in range(2):
        wire.all_reduce(torch.zeros(LARGE)).wait()
    if wire.rank == wire.size - 1:
        if how == "called":
            assert isinstance(wire, RealWire) and wire._sums is not None
            wire._sums._segment.untold = lambda number: [0]  # type: ignore[method-assign]
            wire.all_reduce(torch.ones(LARGE))
        wire.crash()
    return seen(wire.all_reduce(torch.ones(LARGE)).wait)


@on_hosts
@pytest.mark.parametrize("how", ["absent", "called"])
@pytest.mark.parametrize("workers", LAYOUTS[:2], ids=in_words)
def test_a_death_ends_the_sum_of_all_others(workers: WorkersOnHosts, how: str) -> None:
    last = workers.size - 1
    for fate in workers.fates(partial(one_is_killed, how))[:-1]:
        assert fate.result is not None, fate
        kind, ranks, _ = fate.result
        assert (kind, ranks) == (PeerFailed, (last,)), fate


def one_stands_still(wire: Wire) -> list[object]:
    """The last worker is stopped. Others wait for a moment, and then for longer than it takes to say so to each other;
    when all have given up, it goes on, and they get the sum."""
    last, pids = wire.size - 1, wire.all_gather(torch.tensor([os.getpid()])).wait()
    for _ in range(2):
        wire.all_reduce(torch.zeros(LARGE)).wait()
    wire.barrier().wait()
    if wire.rank == last:
        os.kill(os.getpid(), signal.SIGSTOP)
    work = wire.all_reduce(torch.ones(LARGE))
    found = [seen(partial(work.wait, timeout=seconds)) for seconds in ((0.2, 4.0) if wire.rank < last else ())]
    if 0 < wire.rank < last:
        wire.send(Message(), 0, "gave up").wait()
    elif wire.rank == 0:
        for peer in range(1, last):
            wire.receive(peer, "gave up").wait()
        os.kill(int(pids[last]), signal.SIGCONT)
    assert work.wait().eq(wire.size).all()
    return [*found]


@on_hosts
@pytest.mark.parametrize("layout", [(2, 2), (1, 1, 1)])
def test_a_timeout_names_who_was_waited_for(layout: tuple[int, ...]) -> None:
    """After a moment the host that has not sent its sum; later the worker there that has not come."""
    last = sum(layout) - 1
    on_its_host = set(range(last + 1 - layout[-1], last + 1))
    with hosts(len(layout)) as found:
        on = [host for host, count in zip(found, layout, strict=True) for _ in range(count)]
        results = run_real(last + 1, one_stands_still, on=on, environment={"QUORATE_SILENCE": "60s"})
    for of_rank in results[:-1]:
        (kind, first, _), (later_kind, later, sentence) = of_rank
        assert kind is later_kind is WireTimeout
        assert last in first and set(first) <= on_its_host
        assert later == (last,)
        assert f"rank {last} in all_reduce float32" in sentence


def workers_part(is_known: bool, wire: Wire) -> object:
    """One of them takes another sum than the rest."""
    numels = (LARGE, 2 * LARGE) if is_known else ()
    for numel in (*numels, *numels[::-1], *numels):
        wire.all_reduce(torch.zeros(numel)).wait()
    return seen(wire.all_reduce(torch.ones(2 * LARGE if wire.rank == 1 else LARGE)).wait)


@on_hosts
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("workers", LAYOUTS[0:3:2], ids=in_words)
def test_workers_that_part_all_hear_of_it(workers: WorkersOnHosts, is_known: bool) -> None:
    """Who ends last may be left without a majority, and say so by its status: that is not asked here."""
    for fate in workers.fates(partial(workers_part, is_known)):
        found = fate.result
        assert isinstance(found, tuple), fate
        assert found[0] is Mismatch, found
        assert "rank 1 all_reduce" in found[2]


@on_hosts
@pytest.mark.parametrize(("layout", "lost"), [((0, 0, 1, 1), 1), ((0, 1, 2, 2), 0)])
def test_those_that_are_left_go_on_when_a_host_is_lost_in_a_sum(
    layout: tuple[int, ...], lost: int, tmp_path: Path
) -> None:
    """Whose steps are all sums: half a megabyte through 10 Mbit/s."""
    choice: dict[str, Any] = {"strategy": "all-reduce", "on_death": "continue"}
    left = [rank for rank, host in enumerate(layout) if host != lost]
    with hosts(max(layout) + 1, "10mbit") as found:
        on = [found[host] for host in layout]
        with CutTraining(on, tmp_path, 2.0, width=12_800, **choice) as training:
            training.goes_on(range(len(on)), steps=2)
            found[lost].lose()
            training.goes_on(left, steps=3)
            for host in found:
                host.limit(None)
            ended = training.finish(left)
            assert all(one.status == 0 for one in ended), ended
            assert len({one.out.split()[1] for one in ended}) == 1
