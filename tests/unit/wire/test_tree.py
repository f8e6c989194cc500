"""Broadcasts along a tree: who sends to whom, how many bytes, and where workers do something else."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.contracts import Message, Wire
from quorate.core.errors import Mismatch
from quorate.wire.exchange import children_of
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.counted_world import CountedWorld

NUMEL = 1 << 16


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.data(), st.booleans())
def test_each_worker_but_the_root_has_one_parent(numbers: list[int], data: st.DataObject, shares: bool) -> None:
    hosts = [numbers.index(number) for number in numbers]
    root = data.draw(st.integers(0, len(hosts) - 1))
    children = children_of(hosts, root, shares=shares)
    reached, new = {root}, [root]
    while new:
        new = list(chain.from_iterable(children[rank] for rank in new))
        assert reached.isdisjoint(new)
        assert len(set(new)) == len(new)
        reached.update(new)
    assert reached == set(range(len(hosts)))
    for rank, own in enumerate(children):
        copies = [child for child in own if hosts[child] != hosts[rank] or not shares]
        assert len(copies) <= 2
    if shares:
        from_others = [
            hosts[child] for rank, own in enumerate(children) for child in own if hosts[child] != hosts[rank]
        ]
        assert sorted(from_others) == sorted(set(hosts) - {hosts[root]})


@pytest.mark.parametrize("root", [0, 4])
def test_no_host_sends_more_than_twice(root: int) -> None:
    hosts = [0, 0, 0, 3, 3, 5, 6, 7, 7, 9]

    def task(wire: Wire) -> bool:
        group = wire.group(range(wire.size))
        for turn in range(3):
            x = torch.full((NUMEL,), float(turn)) if wire.rank == root else torch.zeros(NUMEL)
            if not group.broadcast(x, root).wait().eq(turn).all():
                return False
            x.fill_(-1.0)  # the root may change it at once
        return True

    world = CountedWorld(len(hosts), network=Network(hosts=hosts))
    assert world.run(task) == [True] * len(hosts)
    sent = world.traffic.out_of_hosts()
    assert max(sent.values()) < 3 * (2 * 4 * NUMEL + 4096), sent
    assert sum(sent.values()) < 3 * (5 * 4 * NUMEL + 16384), sent


def test_a_worker_that_waits_for_something_else_does_not_hold_up_others() -> None:
    """Rank 1 has to forward, and waits for a message of rank 3, which needs the broadcast first."""

    def task(wire: Wire) -> float:
        group = wire.group(range(wire.size))
        work = group.broadcast(torch.full((NUMEL,), float(wire.rank == 0)))
        if wire.rank == 1:
            wire.receive(3, "after").wait()
        value = float(work.wait().sum())
        if wire.rank == 3:
            wire.send(Message(), 1, "after").wait()
        return value

    world = VirtualWorld(5, network=Network(hosts=range(5)))
    assert world.run(task) == [float(NUMEL)] * 5


def test_other_tensors_are_found_out() -> None:
    def task(wire: Wire) -> str:
        x = torch.ones(2 * NUMEL if wire.rank == 1 else NUMEL)
        try:
            wire.group(range(wire.size)).broadcast(x).wait()
        except Mismatch as error:
            return str(error)
        return ""

    sentences = VirtualWorld(3).run(task)
    assert "broadcast from 0 float32 (65536,)" in sentences[0]
    assert "broadcast from 0 float32 (131072,)" in sentences[1]
