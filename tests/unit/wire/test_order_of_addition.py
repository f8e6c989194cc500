"""Sums in virtual worlds with hosts: on each host in order of rank, then in order of hosts, in every kind of sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.wire.exchange import sum_in_order
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

NUMEL = 1000


def noise(rank: int) -> Tensor:
    """Numbers of very different sizes, so that the order in which they are added shows."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randn(NUMEL, generator=draw) * 10 ** torch.randint(-3, 4, (NUMEL,), generator=draw)


def sums(wire: Wire) -> list[Tensor]:
    results = [wire.all_reduce(noise(wire.rank)).wait(), wire.reduce(noise(wire.rank)).wait()]
    results[1] = wire.broadcast(results[1]).wait()
    results.append(torch.cat(wire.all_gather(wire.reduce_scatter(noise(wire.rank)).wait()).wait()))
    group = wire.group(range(wire.size))
    return [*results, group.all_reduce(noise(wire.rank)).wait()]


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1, 1), (0, 1, 0, 2, 1)], ids=["in order", "mixed"])
def test_all_sums_are_added_host_by_host(hosts: tuple[int, ...]) -> None:
    on_each = [[noise(rank) for rank, there in enumerate(hosts) if there == host] for host in range(max(hosts) + 1)]
    expected = sum_in_order([sum_in_order(some) for some in on_each])
    assert not expected.equal(sum_in_order([noise(rank) for rank in range(len(hosts))]))
    for results in VirtualWorld(len(hosts), network=Network(hosts=hosts)).run(sums):
        for kind, x in zip(("all_reduce", "reduce", "reduce_scatter", "in a group"), results, strict=True):
            assert x.equal(expected), kind


def test_sums_of_one_worker_a_host_are_those_of_one_host() -> None:
    tensors = [noise(rank) for rank in range(4)]
    assert sum_in_order(tensors, [0, 1, 2, 3]).equal(sum_in_order(tensors, [0] * 4))
    assert sum_in_order(tensors, [0] * 4).equal(sum_in_order(tensors))
