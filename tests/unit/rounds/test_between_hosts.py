"""Rounds of workers on several hosts: the laws hold, no host pays for all, a round is as fast as an all-reduce."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.core.vectors import Flat, Layout, Part, Segment
from quorate.rounds import forming
from quorate.rounds.rounds import Rounds
from quorate.rounds.terms import Agreed
from quorate.wire.virtual.network import Link, Network, demand_of
from tests.support.counted_world import CountedWorld
from tests.support.scene import zeros
from tests.support.unwatched import Unwatched
from tests.unit.rounds import test_deaths, test_joining, test_laws, test_silence
from tests.unit.rounds.test_laws import speeds, training
from tests.unit.rounds.test_silence import let_stand_still, trained_wide

MOST = 16


@pytest.fixture
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are formed by the hosts, however small they are."""
    monkeypatch.setattr(forming, "HUB_BYTES", 0)


def drawn_hosts(draw: random.Random) -> tuple[int, ...]:
    """Of `MOST` ranks: one worker a host, two or three in order, or any mixture."""
    a_host = draw.choice([1, 2, 3])
    mixed = tuple(draw.randrange(3) for _ in range(MOST))
    return draw.choice([tuple(rank // a_host for rank in range(MOST)), mixed])


def drawn_links(draw: random.Random, size: int, latency: float) -> dict[tuple[int, int], Link]:
    """One worker's links may be thin."""
    if draw.random() < 0.5:
        return {}
    slow, bandwidth = draw.randrange(size), draw.choice([2e5, 1e6])
    return {(slow, other): Link(latency, bandwidth) for other in range(size) if other != slow}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9)


def wide() -> torch.nn.Module:
    """Gradients of 64 KiB and more, of three inputs."""
    return torch.nn.Sequential(torch.nn.Linear(3, 4_000), torch.nn.Tanh(), torch.nn.Linear(4_000, 1))


@pytest.mark.seeds(6, 60)
def test_random_schedules(seed: int, small_ones_too: None) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5, 8])
    bound, late = draw.choice([0, 1, 3, 16]), draw.choice(["carry", "drop", "replace"])
    wait_for: Any = draw.choice(["all", "majority", "designated", 1, 0.6])
    steps = [draw.randint(3, 9) for _ in range(size)]
    pauses, make = speeds(draw, size), draw.choice([test_laws.sgd, test_laws.adam])
    latency = draw.choice([0.0, 1e-4, 5e-3])
    network = Network(latency, draw.choice([1e6, 1e9]), hosts=drawn_hosts(draw))
    settings: dict[str, Any] = {"wait_for": wait_for, "late": late, "max_staleness": bound}
    fields: Any = {"steps": steps, "make": make, "pause": pauses, "rests": (2,) if draw.random() < 0.3 else ()}
    found = training(size, seed=seed, network=network, **fields, **settings)
    test_laws.check(found, bound=bound, quorum=1, late=late)


@pytest.mark.seeds(5, 60)
def test_random_deaths(seed: int, small_ones_too: None) -> None:
    """Also while large vectors are exchanged, over thin links."""
    draw = random.Random(seed)
    plan = test_deaths.planned(seed)
    latency = draw.choice([0.0, 1e-4, 5e-3])
    links = {}
    plan.make = test_laws.sgd
    if seed % 2:
        plan.model = wide
        plan.make, plan.settings["max_staleness"] = sgd, 0  # behind a thin link gradients may grow too old
        links = drawn_links(draw, plan.size, latency)
    plan.world["network"] = Network(latency, draw.choice([1e6, 1e7, 1e9]), links, hosts=drawn_hosts(draw))
    test_deaths.check(plan)


@pytest.mark.seeds(5, 60)
def test_random_silences(seed: int, small_ones_too: None, monkeypatch: pytest.MonkeyPatch) -> None:
    let_stand_still(monkeypatch)
    draw = random.Random(seed)
    if seed % 2:
        test_silence.small_logs(monkeypatch)
    size = draw.choice([2, 3, 5])
    places = [(rank, step) for rank in range(size) for step in range(10)]
    stuck = {place: draw.choice([0.06, 0.3, 2.0]) for place in draw.sample(places, draw.randint(1, 4))}
    network = Network(1e-3, draw.choice([3e6, 1e8]), hosts=drawn_hosts(draw))
    settings = {"wait_for": draw.choice([1, 2, "majority", "all"]), "max_staleness": draw.choice([1, 4, 16])}
    found = trained_wide(size, stuck, steps=10, seed=seed, network=network, **settings)
    test_silence.ends_well(found, settings["max_staleness"])


@pytest.mark.seeds(3, 30)
def test_random_joins(seed: int, small_ones_too: None) -> None:
    """On hosts that were there before, and on others."""
    draw = random.Random(seed)
    size = draw.choice([2, 3, 4])
    joins = {size + place: draw.uniform(0.0, 0.3) for place in range(draw.choice([1, 2]))}
    deaths = {draw.randrange(size): draw.randint(1, 80)} if draw.random() < 0.5 else {}
    hosts = drawn_hosts(draw)[: size + draw.choice([0, 1])]
    plan = test_joining.Plan(size=size, joins=joins, deaths=deaths, seed=seed, network=Network(hosts=hosts))
    test_joining.check(plan, plan.run())


@pytest.mark.parametrize("strategy", ["decoupled-diloco", "eager-majority", "backup-workers", "bounded-staleness"])
def test_strategies_of_rounds_end_equal(strategy: str, small_ones_too: None) -> None:
    pauses = speeds(random.Random(3), 5)
    network = Network(hosts=(0, 0, 1, 1, 2))
    found = training(5, steps=9, make=sgd, pause=pauses, strategy=strategy, network=network)
    assert all(torch.equal(measures.parameters, found[0].parameters) for measures in found)


class NoReplica:
    """Of rounds that are only counted."""

    def boundary(self) -> None:
        """Nothing is kept."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody misses rounds here, so nobody asks for {name}")


def of_ones(steps: int, width: int, times: list[float], **settings: Any) -> Callable[[Wire], tuple[float, int]]:
    """Rounds of `width` numbers, for `played`: what their sums add up to, and how many there were."""
    part = Part(width, torch.float32, torch.device("cpu"))
    layout = Layout((Segment("w", (width,), torch.float32, 0, 0),), (part,), 0)

    def live(wire: Wire) -> tuple[float, int]:
        agreed = Agreed(size=wire.size, vector_bytes=4 * width, **settings)
        rounds, total = Rounds(wire, agreed, layout, NoReplica(), None, Unwatched()), 0.0
        for step in range(steps):
            begin = wire.clock.now()
            own = Flat([torch.full((width,), 1.0 + wire.rank)], layout)
            rounds.contribute(own, weight=1.0, step=step, options=None).wait()
            times.append(wire.clock.now() - begin)
            total += sum(float(one.sum.parts[0].double().sum()) for one in rounds.completed() if one.sum is not None)
        number = rounds.version
        rounds.pause(ended=True, apply=lambda one: None)
        rounds.close()
        return total, number

    return live


def played(network: Network, task: Callable[[Wire], tuple[float, int]]) -> tuple[float, float, int]:
    """The most bytes out of a host and into one, and the rounds; all workers end equal."""
    world = CountedWorld(len(network.hosts), network=network, timeout=600.0)
    found = world.run(task)
    assert len({total for total, _ in found}) == 1
    traffic = world.traffic
    return max(traffic.out_of_hosts().values()), max(traffic.into_hosts().values()), found[0][1]


@pytest.mark.parametrize(("size", "a_host", "wait_for"), [(8, 1, "all"), (8, 4, 3), (64, 2, "all")])
def test_no_host_sends_or_gets_more_than_twice_and_a_half_what_there_is(size: int, a_host: int, wait_for: Any) -> None:
    width = 1 << 14
    network = Network(hosts=[rank // a_host for rank in range(size)])
    out, into, rounds = played(network, of_ones(3, width, [], wait_for=wait_for))
    assert rounds >= 3
    assert max(out, into) <= 2.5 * 4 * width * rounds
    assert min(out, into) >= 4 * width * rounds


def test_small_vectors_go_to_the_leader_and_from_it() -> None:
    """As long as it does not carry more than `HUB_BYTES` of them each way."""
    out, _, rounds = played(Network(hosts=[0, 0, 1, 1]), of_ones(4, 1_000, [], wait_for="all"))
    assert out == 2 * 4 * 1_000 * rounds <= forming.HUB_BYTES * rounds


@pytest.mark.parametrize("hosts", [[0, 1], [0, 0, 1, 1], [0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 1, 1, 2]])
def test_a_round_takes_what_an_all_reduce_takes(hosts: Sequence[int]) -> None:
    width, times = 1_000_000, list[float]()
    network = Network(hosts=hosts)
    played(network, of_ones(4, width, times, wait_for="all"))
    assert max(times) <= 1.3 * demand_of(network, "all_reduce", [4 * width] * len(hosts)).seconds


def test_links_that_become_slow_carry_each_round_once() -> None:
    """A hundred times slower than rounds have known: vectors take longer by far than those need that are asked whether
    they are there, and their answers do not wait behind vectors."""
    hosts, width, rounds, slow = [0, 0, 1, 1, 2, 2, 3, 3], 1 << 18, 6, Network(1e-3, 1e6)
    network, times = Network(1e-3, 1e8, hosts=hosts), list[float]()
    world = CountedWorld(len(hosts), network=network, timeout=600.0)
    train = of_ones(rounds, width, times, wait_for="all")

    def becomes_slow() -> None:
        for name in ("bandwidth", "_usual"):
            object.__setattr__(network, name, getattr(slow, name))

    ends = world.outcomes(train, on_start=lambda stage: stage.scheduler.at(0.05, becomes_slow))
    assert [one.result and one.result[1] for one in ends] == [rounds] * len(hosts)
    most = 2 * 3 / 4 * 4 * width * rounds
    for nbytes in (world.traffic.out_of_hosts(), world.traffic.into_hosts()):
        assert most <= max(nbytes.values()) <= 1.01 * most
    assert sorted(times)[len(hosts) * rounds // 2] <= 1.3 * demand_of(slow, "all_reduce", [4 * width] * 4).seconds


@pytest.mark.parametrize("pieces", [False, True], ids=["by the leader", "in pieces"])
def test_contributions_are_added_host_by_host(pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order of rank on each host, and of the hosts' lowest ranks: what the numbers are rounded to says so."""
    if pieces:
        monkeypatch.setattr(forming, "HUB_BYTES", 0)
    hosts, found = (0, 1, 2, 0, 1, 2), list[torch.Tensor]()

    told = training(6, steps=1, wait_for="all", momentum="common", network=Network(hosts=hosts))[0].rounds[0].sum
    assert told is not None
    for rank in range(6):
        model, draw = test_laws.net(), torch.Generator().manual_seed(rank)
        model(torch.randn(4, 3, generator=draw)).square().mean().backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]) * (1 / 6))
    first, second, third = (found[rank] + found[rank + 3] for rank in range(3))
    wanted = first + second + third
    assert not torch.equal(wanted, third + second + first)
    assert not torch.equal(wanted, found[0] + found[1] + found[2] + found[3] + found[4] + found[5])
    assert torch.equal(torch.cat([segment.reshape(-1) for segment in told.segments()]), wanted)


@pytest.mark.parametrize("slow", [0, 2, 5], ids=["the leader's host", "a head", "the last one"])
def test_a_thin_link_carries_no_piece_for_the_others(slow: int) -> None:
    """Once it is known; and who is at the end of it ends with the same parameters."""
    hosts, width = range(6), 100_000
    links = {(slow, other): Link(1e-3, 1e6) for other in hosts if other != slow}
    fields: Any = {
        "steps": [40 if rank != slow else 3 for rank in hosts],
        "make": partial(torch.optim.SGD, lr=1e-7),
        "pause": lambda rank, step: 0.02 if rank != slow else 0.1,
        "model": zeros(width, value=0.5),
        "network": Network(1e-4, 1e9, links, hosts=list(hosts)),
    }
    found = training(6, wait_for=3, max_staleness=64, **fields)
    assert all(torch.equal(measures.parameters, found[0].parameters) for measures in found)
    quick = [seconds for measures in found if measures.rank != slow for seconds in measures.lengths]
    assert sum(quick) / len(quick) < (0.2 if slow == 0 else 0.11), "through a hub it is 0.84 and 0.42"
