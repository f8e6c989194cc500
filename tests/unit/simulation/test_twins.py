"""Times alone against the virtual world, where the same strategies run as they are: step by step."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.launch.worker.join import join
from quorate.simulation.busy import Modelled
from quorate.simulation.links import Links
from quorate.simulation.models import known, times_of
from quorate.simulation.played import Case, Played
from quorate.train.distribute import distribute
from quorate.wire import current
from quorate.wire.virtual.compute import Sampled
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

SIZE, STEPS, LATENCY, BANDWIDTH, PARAMETERS = 5, 10, 400e-6, 2e9, 150_000
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in sorted({*known()} - {"ddp", "post-local-sgd", "diloco", "ad-psgd"})),
    ("post-local-sgd", {"after": 0, "sync_every": 3}),
    ("diloco", {"sync_every": 5}),
    ("local-sgd", {"sync_every": "50ms"}),
    ("quorum", {"wait_for": 1, "max_staleness": 1}),
    ("quorum", {"wait_for": 2, "late": "drop"}),
    ("quorum", {"wait_for": "all"}),
    ("quorum", {"wait_for": 3, "overlap": True}),
    ("quorum", {"wait_for": 1, "late": "replace"}),
    ("eager-averaging", {"sync_every": 2, "wait_for": 2}),
    ("d-psgd", {"overlap": False, "topology": "star"}),
    ("osgp", {"bound": 2, "topology": "exponential"}),
]
COMPUTE = Sampled("lognormal", 0.010, 0.7, seed=5)


def trained(wire: Wire, strategy: str, settings: dict[str, Any]) -> list[float]:
    """When each step of this worker ended, from the moment when it began."""
    current.enter(wire, thread_only=True)
    join()
    model = torch.nn.Linear(PARAMETERS - 1, 1)
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy=strategy, **settings)
    began, ends = wire.clock.now(), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(1, PARAMETERS - 1)).square().mean().backward()
        optimizer.step()
        ends.append(wire.clock.now() - began)
    current.here().leave()
    return ends


@pytest.mark.parametrize("wait_for", [2, "all"])
def test_rounds_between_hosts_take_what_they_take_in_the_virtual_world(wait_for: Any) -> None:
    """But for what goes within a host, and for parts that one of them sends while it waits for another."""
    size, of = 6, Network(latency=LATENCY, bandwidth=2e7, hosts=(0, 0, 1, 1, 2, 2))
    theirs = VirtualWorld(size, compute=COMPUTE, network=of).run(
        lambda wire: trained(wire, "quorum", {"wait_for": wait_for})
    )
    case = Case(
        workers=size,
        steps=STEPS,
        parameters=PARAMETERS + 1,
        busy=Modelled(compute=COMPUTE),
        links=Links(text="", latency=LATENCY, bandwidth=2e7, per_host=2),
    )
    ours = times_of("quorum", {"wait_for": wait_for}).play(case)
    last = max(end for end in ours.end)
    assert last == pytest.approx(max(ends[-1] for ends in theirs), rel=0.1)


@lru_cache
def played(strategy: str, settings: tuple[tuple[str, Any], ...], size: int) -> Played:
    links = Links(text="", latency=LATENCY, bandwidth=BANDWIDTH, is_mesh=True)
    case = Case(
        workers=size,
        steps=STEPS,
        parameters=PARAMETERS + 1,  # the header has a place for each tensor, of which there are two
        busy=Modelled(compute=COMPUTE),
        links=links,
        examples=1,
    )
    return times_of(strategy, dict(settings)).play(case)


@pytest.mark.parametrize(("strategy", "settings"), CASES)
def test_every_step_ends_when_it_does_in_the_virtual_world(strategy: str, settings: dict[str, Any]) -> None:
    network = Network(latency=LATENCY, bandwidth=BANDWIDTH)
    world = VirtualWorld(SIZE, compute=COMPUTE, network=network)
    theirs = world.run(lambda wire: trained(wire, strategy, settings))
    run = played(strategy, tuple(settings.items()), SIZE)
    ours = [[end for one, end in zip(run.rank, run.end, strict=True) if one == rank] for rank in range(SIZE)]
    until = min(ends[-1] for ends in theirs) - LATENCY  # who has ended calls no more, which times alone leave out
    compared = 0
    for rank in range(SIZE):
        inside = [end for end in theirs[rank] if end < until]
        assert ours[rank][: len(inside)] == pytest.approx(inside, abs=5e-5), rank
        compared += len(inside)
    assert compared > SIZE * STEPS / 3
