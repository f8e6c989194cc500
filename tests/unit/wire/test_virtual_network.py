"""What the virtual network costs, held against the formulas worked out by hand."""

from __future__ import annotations

import pytest
import torch

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.network import SHARED_MEMORY, Link, Network, demand_of
from quorate.wire.virtual.world import VirtualWorld
from tests.support.counted_world import CountedWorld

PLAIN = Network(latency=1.0, bandwidth=10.0)

COSTS = [
    ("all_reduce", [40] * 4, 0, 2 * (3 + 3.0)),
    ("reduce_scatter", [40] * 4, 0, 3 + 3.0),
    ("all_gather", [40, 0, 10, 30], 0, 3 + 8.0),
    ("broadcast", [40] * 4, 2, 3 + 4.0),
    ("reduce", [40] * 4, 2, 3 + 4.0),
    ("all_to_all", [40, 20, 20, 20], 0, 3 + 3.0),
    ("gather", [40, 0, 10, 30], 3, 1 + 5.0),
    ("scatter", [0, 40, 0, 0], 1, 1 + 3.0),
    ("barrier", [0] * 4, 0, 2.0),
    ("barrier", [0] * 5, 0, 3.0),
]


@pytest.mark.parametrize(("operation", "nbytes", "root", "seconds"), COSTS)
def test_cost(operation: str, nbytes: list[int], root: int, seconds: float) -> None:
    assert demand_of(PLAIN, operation, nbytes, root).seconds == pytest.approx(seconds)
    assert demand_of(PLAIN, operation, nbytes[:1], 0).seconds == 0.0


def test_the_slowest_link_of_the_ring_decides() -> None:
    network = Network(1.0, 10.0, {(1, 2): Link(5.0, 10.0), (3, 2): Link(1.0, 2.0), (0, 2): Link(100.0, 0.1)})
    assert network.link(2, 1) == network.link(1, 2) == Link(5.0, 10.0)
    assert network.ring(4) == Link(5.0, 2.0), "0-2 is not on the ring"
    assert network.ring(2) == Link(1.0, 10.0)
    assert network.mesh(4) == Link(100.0, 0.1)
    assert network.mesh(2) == Link(1.0, 10.0)
    assert network.star(3, 4) == Link(1.0, 2.0)


def test_a_world_whose_links_are_all_named_does_not_see_the_usual_one() -> None:
    assert Network(9.0, 1.0, {(0, 1): Link(1.0, 50.0)}).mesh(2) == Link(1.0, 50.0)


@pytest.mark.parametrize(("latency", "bandwidth"), [(-1.0, 1.0), (float("inf"), 1.0), (0.0, 0.0), (0.0, -5.0)])
def test_impossible_links_are_refused(latency: float, bandwidth: float) -> None:
    with pytest.raises(ConfigurationError):
        Network(latency, bandwidth)
    with pytest.raises(ConfigurationError):
        Link(latency, bandwidth)


HOSTS = Network(latency=1.0, bandwidth=10.0, hosts=(7, 7, 3, 3, 7))


def test_hosts_are_named_for_their_lowest_ranks() -> None:
    assert [HOSTS.host_of(rank) for rank in range(6)] == [0, 0, 2, 2, 0, 5], "who is not known is alone"
    assert [PLAIN.host_of(rank) for rank in range(3)] == [0, 0, 0]


def test_on_a_host_there_is_memory_and_between_hosts_a_link() -> None:
    assert HOSTS.link(0, 4) == SHARED_MEMORY
    assert HOSTS.link(1, 2) == Link(1.0, 10.0)
    assert HOSTS.ring(2) == SHARED_MEMORY
    assert HOSTS.ring(4) == Link(1.0, 10.0)
    assert HOSTS.mesh(5) == Link(1.0, 10.0)


@pytest.mark.parametrize(
    ("hosts", "when"), [((0, 0, 1), {"large": 5.0, "urgent": 1.7}), ((), {"large": 5.0, "urgent": 5.7})]
)
def test_an_urgent_message_overtakes_others_between_hosts(hosts: tuple[int, ...], when: dict[str, float]) -> None:
    def task(wire: Wire) -> dict[str, float]:
        if wire.rank == 0:
            wire.send(Message((torch.zeros(10),)), 2, "x")
            wire.send(Message(header={"k": 1}, urgent=True), 2, "x")
        times = {}
        for _ in range(2 if wire.rank == 2 else 0):
            kind = "urgent" if wire.receive(0, "x").wait()[1].header else "large"
            times[kind] = wire.clock.now()
        return times

    network = Network(latency=1.0, bandwidth=10.0, hosts=hosts)
    assert VirtualWorld(3, network=network).run(task)[2] == pytest.approx(when)


def arrivals(network: Network, sends: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """When a tensor of 40 bytes is there that each of `sends` (source, target) has sent at 0."""

    def task(wire: Wire) -> dict[tuple[int, int], float]:
        for source, target in sends:
            if source == wire.rank:
                wire.send(Message((torch.zeros(10),), shared=True), target, "x")
        times = {}
        for source, target in [way for way in sends if way[1] == wire.rank]:
            wire.receive(source, "x").wait()
            times[source, target] = wire.clock.now()
        return times

    return {place: at for times in VirtualWorld(4, network=network).run(task) for place, at in times.items()}


@pytest.mark.parametrize(
    ("sends", "seconds"),
    [
        ([(0, 2)], [5.0]),
        ([(0, 2), (1, 2)], [5.0, 9.0]),
        ([(0, 2), (0, 3)], [5.0, 9.0]),
        ([(0, 2), (2, 0)], [5.0, 5.0]),
        ([(0, 1), (0, 2)], [2e-6, 5.0]),
    ],
    ids=["alone", "both from one host", "both to one host", "one each way", "beside one within the host"],
)
def test_what_goes_between_two_hosts_shares_their_ports(sends: list[tuple[int, int]], seconds: list[float]) -> None:
    assert sorted(arrivals(Network(1.0, 10.0, hosts=(0, 0, 1, 1)), sends).values()) == pytest.approx(seconds)


def test_a_thin_link_keeps_nobody_from_the_port() -> None:
    times = arrivals(Network(1.0, 10.0, {(0, 1): Link(1.0, 1.0)}, hosts=(0, 1, 2, 3)), [(0, 1), (0, 2)])
    assert times == {(0, 1): pytest.approx(41.0), (0, 2): pytest.approx(9.0)}


def test_only_what_goes_between_hosts_is_counted() -> None:
    def task(wire: Wire) -> None:
        wire.all_reduce(torch.zeros(100)).wait()
        if wire.rank == 0:
            wire.send(Message((torch.zeros(10),), {"a": 1}), 1, "x")
            wire.send(Message((torch.zeros(10),), {"a": 1}), 2, "x")

    world = CountedWorld(4, network=Network(hosts=(0, 0, 1, 1)))
    world.run(task)
    traffic = world.traffic
    assert traffic.out_of_hosts() == {0: 640, 2: 600}, "a ring of four carries 2 x 3 / 4 of it over each link"
    assert traffic.into_hosts() == {0: 600, 2: 640}
    assert (traffic.header_bytes, traffic.messages) == (len('{"a":1}'), 3)
