"""Large sums of groups: what they send, and what becomes of them where workers do something else, or nothing."""

from __future__ import annotations

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.core.errors import Mismatch, WireTimeout
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.counted_world import CountedWorld

NUMEL = 1 << 16


def group(wire: Wire) -> Wire:
    return wire.group(range(wire.size))


@pytest.mark.parametrize("size", [3, 4, 8])
def test_each_sends_two_pieces_for_each_other_worker(size: int) -> None:
    """2 (P - 1) / P of the tensor, but for headers, where each worker has a host of its own."""
    world = CountedWorld(size, network=Network(hosts=range(size)))
    world.run(lambda wire: group(wire).all_reduce(torch.ones(NUMEL)).wait())
    wanted = 2 * (size - 1) / size * 4 * NUMEL
    sent = world.traffic.out_of_hosts()
    assert all(wanted - 512 <= sent[host] < wanted + 4096 for host in range(size)), (sent, wanted)


def test_other_tensors_are_found_out() -> None:
    """Also a small one, which goes at once."""

    def task(other: torch.Tensor, wire: Wire) -> str:
        x = other if wire.rank == 1 else torch.ones(NUMEL)
        work = group(wire).all_reduce(x)
        with pytest.raises(Mismatch) as error:
            work.wait()
        with pytest.raises(Mismatch):
            work.wait()
        assert work.done()
        return str(error.value)

    for other in (torch.ones(2 * NUMEL), torch.ones(3)):
        sentences = VirtualWorld(3).run(lambda wire, other=other: task(other, wire))
        assert all("all_reduce float32 (65536,)" in sentence for sentence in sentences)


def test_who_is_waited_for_is_named() -> None:
    def task(wire: Wire) -> tuple[str, list[int]] | None:
        if wire.rank == 1:
            wire.clock.sleep(9.0)
            group(wire).all_reduce(torch.ones(NUMEL)).wait()
            return None
        work = group(wire).all_reduce(torch.ones(NUMEL))
        with pytest.raises(WireTimeout) as error:
            work.wait(2.0)
        assert not work.done()
        assert work.wait(60.0).sum() == 3 * NUMEL
        return str(error.value), list(error.value.ranks)

    first, _, third = VirtualWorld(3).run(task)
    assert first == ("rank 0 waited 2 s for rank 1 in all_reduce float32 (65536,)", [1])
    assert third is not None and third[1] == [1]


def test_what_one_waits_for_first_does_not_hold_up_the_others() -> None:
    """Each waits for its sums, and for a message that is sent behind another sum, in an order of its own."""

    def task(wire: Wire) -> float:
        sums = [group(wire).all_reduce(torch.full((NUMEL,), float(number))) for number in range(4)]
        pair = wire.group([0, 1]) if wire.rank < 2 else None
        if pair is not None:
            sums.insert(2 * wire.rank, pair.all_reduce(torch.ones(NUMEL)))
        order = sums if wire.rank == 1 else sums[::-1]
        return sum(float(work.wait()[0]) for work in order)

    assert VirtualWorld(3).run(task) == [20.0, 20.0, 18.0]
