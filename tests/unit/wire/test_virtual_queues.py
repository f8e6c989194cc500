"""Collectives and messages that are under way together share links: seconds, worked out by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from quorate.core.contracts import Message, Wire, Work
from quorate.wire.virtual.network import Link, Network, demand_of
from quorate.wire.virtual.ports import Queues
from quorate.wire.virtual.world import VirtualWorld

PLAIN = Network(latency=1.0, bandwidth=10.0)
OPERATIONS = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter"),
    "barrier",
)
X40 = torch.zeros(10)
"""40 bytes: an all-reduce of four is 6 s of latency, and 6 s of transmission."""


def ends(network: Network, launches: Sequence[Callable[[Wire], Work[object]]], size: int = 4) -> list[float]:
    """When each of `launches`, all made at 0 by every worker, is done for the last one."""

    def task(wire: Wire) -> list[float]:
        times = [0.0] * len(launches)

        def until(number: int, work: Work[object]) -> None:
            work.wait()
            times[number] = wire.clock.now()

        works = [launch(wire) for launch in launches]
        waits = [wire.spawn(lambda own, n=n, w=w: until(n, w), f"wait-{n}") for n, w in enumerate(works)]  # type: ignore[misc]
        for wait in waits:
            wait.wait()
        return times

    return [max(each) for each in zip(*VirtualWorld(size, network=network).run(task), strict=True)]


def all_reduce(wire: Wire) -> Work[object]:
    return wire.all_reduce(X40.clone())


def on(channel: str) -> Callable[[Wire], Work[object]]:
    return lambda wire: wire.channel(channel).all_reduce(X40.clone())


@pytest.mark.parametrize("count", [1, 2, 4])
def test_collectives_at_once_take_the_latency_and_all_transmissions(count: int) -> None:
    assert ends(PLAIN, [all_reduce] * count) == pytest.approx([6 + 6.0 * (n + 1) for n in range(count)])


def test_channels_share_the_links() -> None:
    assert sorted(ends(PLAIN, [on("a"), on("b"), all_reduce])) == pytest.approx([12.0, 18.0, 24.0])


@pytest.mark.parametrize(
    ("later", "when"), [(2.0, [12.0, 18.0]), (6.0, [12.0, 18.0]), (7.0, [12.0, 19.0]), (30.0, [12.0, 42.0])]
)
def test_one_that_comes_later_waits_for_what_is_left(later: float, when: list[float]) -> None:
    """The transmission of the first ends at 6, and its latency keeps nobody from the links."""

    def task(wire: Wire) -> list[float]:
        first = wire.all_reduce(X40.clone())
        wire.clock.sleep(later)
        second = wire.all_reduce(X40.clone())
        times = []
        for work in (first, second):
            work.wait()
            times.append(wire.clock.now())
        return times

    results = VirtualWorld(4, network=PLAIN).run(task)
    assert results == [pytest.approx([max(when[0], later), when[1]])] * 4


@pytest.mark.parametrize(
    "network", [PLAIN, Network(1.0, 10.0, hosts=(0, 1, 0, 1)), Network(1.0, 10.0, {(1, 2): Link(3.0, 1.0)})]
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_alone_each_takes_what_it_takes_alone(operation: str, network: Network) -> None:
    """To the bit, also behind another one that is over: times of one collective at a time are those of the formulas."""
    queues, nbytes, now = Queues(network), [40, 30, 20, 40], 0.0
    for _ in range(3):
        done = queues.collective(demand_of(network, operation, nbytes), now)
        assert done == now + demand_of(network, operation, nbytes).seconds
        now = done
    assert Queues(network).collective(demand_of(network, operation, [40]), 7.0) == 7.0


def test_what_transmits_nothing_waits_for_no_transmission() -> None:
    empty = torch.zeros(0)
    times = ends(PLAIN, [all_reduce, lambda wire: wire.barrier(), lambda wire: wire.all_reduce(empty.clone())])
    assert times == pytest.approx([12.0, 2.0, 6.0])


def test_other_links_are_not_disturbed() -> None:
    """What a worker gathers comes over links of its own; what it gives out leaves by the other direction."""

    def gather(root: int) -> Callable[[Wire], Work[object]]:
        return lambda wire: wire.gather(X40, root)

    assert ends(PLAIN, [gather(0), gather(2), gather(0)]) == pytest.approx([13.0, 13.0, 25.0])
    assert ends(PLAIN, [gather(0), lambda wire: wire.scatter([X40] * 4, 0)]) == pytest.approx([13.0, 13.0])


def test_a_thin_link_holds_up_those_that_cross_it_and_no_others() -> None:
    """Ten seconds for each all-reduce over 1 - 2, one over the rest of the ring, which a message then finds idle."""
    network = Network(0.0, 60.0, {(1, 2): Link(0.0, 6.0)})
    assert ends(network, [all_reduce] * 2) == pytest.approx([10.0, 20.0])
    assert sent_beside(network, 0, 1) == pytest.approx(3.0)
    assert sent_beside(network, 1, 2) == pytest.approx(30.0)
    assert sent_beside(network, 2, 1) == pytest.approx(10.0), "the ring goes the other way"


def sent_beside(network: Network, source: int, target: int, collectives: int = 2) -> float:
    """When a message of 60 bytes is there that is sent behind `collectives` all-reduces."""

    def task(wire: Wire) -> float:
        for _ in range(collectives):
            wire.all_reduce(X40.clone())
        wire.barrier().wait()  # of no latency: all have come
        if wire.rank == source:
            wire.send(Message((torch.zeros(15),), shared=True), target, "x")
        if wire.rank == target:
            wire.receive(source, "x").wait()
        return wire.clock.now()

    return VirtualWorld(4, network=network).run(task)[target]


def test_messages_and_collectives_share_links() -> None:
    """Of 0 -> 1, which is on the ring: whatever comes later waits; 0 -> 2 is not."""
    network = Network(0.0, 10.0)
    assert sent_beside(network, 0, 1, 1) == pytest.approx(6.0 + 6.0)
    assert sent_beside(network, 0, 2, 1) == pytest.approx(6.0)

    def task(target: int) -> Callable[[Wire], float]:
        def send_and_sum(wire: Wire) -> float:
            if wire.rank == 0:
                wire.send(Message((torch.zeros(15),), shared=True), target, "x")
            wire.all_reduce(X40.clone()).wait()
            return wire.clock.now()

        return send_and_sum

    assert VirtualWorld(4, network=network).run(task(1)) == pytest.approx([6.0 + 6.0] * 4)
    assert VirtualWorld(4, network=network).run(task(2)) == pytest.approx([6.0] * 4)


def test_a_group_shares_links_with_all() -> None:
    """Ranks 0 and 1 as a group send each other halves of their sums, as messages."""

    def task(wire: Wire, is_beside: bool) -> float:
        work = wire.all_reduce(X40.clone()) if is_beside else None
        wire.barrier().wait()
        if wire.rank < 2:
            wire.group([0, 1]).all_reduce(X40.clone()).wait()
        seconds = wire.clock.now()
        if work is not None:
            work.wait()
        return seconds

    alone, beside = (
        max(VirtualWorld(4, network=Network(0.0, 10.0)).run(lambda wire, b=b: task(wire, b))) for b in (False, True)
    )
    assert alone > 0 and beside == pytest.approx(alone + 6.0)


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 2, 3)])
def test_hosts_share_their_ports(hosts: tuple[int, ...]) -> None:
    """Whoever of a host sends; and a port is busy once for a collective, however many of its links lead through it."""
    network = Network(0.0, 10.0, hosts=hosts)
    assert ends(network, [all_reduce] * 3) == pytest.approx([6.0, 12.0, 18.0], rel=1e-4)
    assert sent_beside(network, 0, hosts.index(1), 1) == pytest.approx(12.0)


def test_within_a_host_nothing_is_shared() -> None:
    network = Network(0.0, 10.0, hosts=(0, 0, 1, 1))
    assert sent_beside(network, 0, 1, 1) == pytest.approx(0.0, abs=1e-5)
    assert max(ends(Network(0.0, 10.0, hosts=(0,) * 4), [all_reduce] * 3)) == pytest.approx(0.0, abs=1e-4)


def test_hosts_with_a_thin_link_between_them() -> None:
    """The thin link takes 10 s for each, the ports one: what goes to the third host finds them idle."""
    network = Network(0.0, 60.0, {(1, 2): Link(0.0, 6.0)}, hosts=(0, 0, 1, 2))
    assert ends(network, [all_reduce] * 2) == pytest.approx([10.0, 20.0], rel=1e-4)
    assert sent_beside(network, 1, 3) == pytest.approx(3.0), "behind 2 s at the port"
    assert sent_beside(network, 1, 2) == pytest.approx(30.0)


@pytest.mark.parametrize("seed", range(20))
def test_no_link_transmits_twice_at_a_time_nor_idles_with_work(seed: int) -> None:
    """Of drawn collectives on one ring the last is done when the transmissions behind each other are, and a latency."""
    draw = random.Random(seed)
    queues, free, now = Queues(PLAIN), 0.0, 0.0
    for _ in range(30):
        now += draw.choice([0.0, draw.expovariate(0.2)])
        demand = demand_of(PLAIN, draw.choice(["all_reduce", "all_gather", "broadcast"]), [draw.randrange(1, 99)] * 4)
        free = max(free, now) + demand.nbytes / 10.0
        assert queues.collective(demand, now) == pytest.approx(free + demand.latency)


def test_every_worker_is_done_at_the_same_time_and_runs_are_alike() -> None:
    def task(wire: Wire) -> list[float]:
        wire.clock.sleep(wire.rank * 0.5)
        works = [on(name)(wire) for name in "abc"]
        return [(work.wait(), wire.clock.now())[1] for work in works]

    runs = [VirtualWorld(4, network=PLAIN, seed=seed).run(task) for seed in (0, 0, 1)]
    assert all(times == run[0] for run in runs for times in run)
    assert runs[0] == runs[1] and sorted(runs[2][0]) == sorted(runs[0][0])
    assert all(b - a == pytest.approx(6.0) for a, b in itertools.pairwise(sorted(runs[0][0])))
