"""Times alone against the virtual world, where the same strategies run as they are: step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch

from quorate.core.codec import Codec
from quorate.core.contracts import Wire
from quorate.launch.worker.join import join
from quorate.simulation.busy import Modelled
from quorate.simulation.codes import CodingCost, codes_of, reduction_in
from quorate.simulation.links import Links, parts_of
from quorate.simulation.models import known, times_of
from quorate.simulation.played import Case, Played
from quorate.train.distribute import distribute
from quorate.wire import current
from quorate.wire.virtual.compute import Sampled
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

SIZE, STEPS, LATENCY, BANDWIDTH, PARAMETERS = 5, 10, 400e-6, 2e9, 150_000
SLOW = 5e7
"""Bytes per second at which codes take longer than latencies."""
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


def trained(wire: Wire, strategy: str, settings: dict[str, Any], sent: list[float] | None = None) -> list[float]:
    """When each step of this worker ended, from the moment when it began."""
    current.enter(wire, thread_only=True)
    join()
    model = torch.nn.Linear(PARAMETERS - 1, 1)
    optimizer: Any = distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy=strategy, **settings)
    began, ends, before = wire.clock.now(), list[float](), bytes_of(optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(1, PARAMETERS - 1)).square().mean().backward()
        optimizer.step()
        ends.append(wire.clock.now() - began)
    if sent is not None:
        sent.append(bytes_of(optimizer) - before)
    current.here().leave()
    return ends


def bytes_of(optimizer: Any) -> float:
    """That its worker has sent so far."""
    return float(sum(optimizer.__dict__["_quorate_worker"].timer._meter.bytes_out.values()))


@pytest.mark.parametrize("wait_for", [2, "all"])
@pytest.mark.parametrize("coded", [{}, {"compress": "sign"}, {"compress": "half"}])
def test_rounds_between_hosts_take_what_they_take_in_the_virtual_world(wait_for: Any, coded: dict[str, Any]) -> None:
    """But for what goes within a host, and for parts that one of them sends while it waits for another; in codes where
    these are less. Within a tenth; within a fifth where rounds are of few and short, so that each leads to others."""
    size, of, settings = 6, Network(latency=LATENCY, bandwidth=2e7, hosts=(0, 0, 1, 1, 2, 2)), {"wait_for": wait_for}
    theirs = VirtualWorld(size, compute=COMPUTE, network=of).run(lambda wire: trained(wire, "quorum", settings | coded))
    links = Links(text="", latency=LATENCY, bandwidth=2e7, per_host=2)
    ours = times_of("quorum", settings).play(twin("quorum", settings | coded, links, size))
    last = max(end for end in ours.end)
    off = 0.2 if coded.get("compress") == "sign" and wait_for == 2 else 0.1
    assert last == pytest.approx(max(ends[-1] for ends in theirs), rel=off)


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
    ours = [[end for other, end in zip(run.rank, run.end, strict=True) if other == rank] for rank in range(SIZE)]
    until = min(ends[-1] for ends in theirs) - LATENCY  # who has ended calls no more, which times alone leave out
    compared = 0
    for rank in range(SIZE):
        inside = [end for end in theirs[rank] if end < until]
        assert ours[rank][: len(inside)] == pytest.approx(inside, abs=5e-5), rank
        compared += len(inside)
    assert compared > SIZE * STEPS / 3


CODED: list[tuple[str, dict[str, Any]]] = [
    ("all-reduce", {"compress": "half"}),
    ("all-reduce", {"compress": "sign", "reduce": "gather"}),
    ("all-reduce", {"compress": "sign", "reduce": "two-phase"}),
    ("all-reduce", {"compress": "blocks"}),
    ("all-reduce", {"compress": "top-k", "density": 0.01}),
    ("diloco", {"sync_every": 3, "compress": "chunked-top-k"}),
]


@pytest.mark.parametrize(("strategy", "settings"), CODED)
def test_codes_take_what_they_take_in_the_virtual_world(strategy: str, settings: dict[str, Any]) -> None:
    """Every step ends when it does there, where encoding takes no time; and as many bytes are sent."""
    sent = list[float]()

    def live(wire: Wire) -> list[float]:
        return trained(wire, strategy, settings, sent)

    theirs = VirtualWorld(SIZE, compute=COMPUTE, network=Network(latency=LATENCY, bandwidth=SLOW)).run(live)
    case = twin(strategy, settings, Links(text="", latency=LATENCY, bandwidth=SLOW, is_mesh=True))
    run = times_of(strategy, reduction_in(strategy, settings)[0]).play(case)
    for rank in range(SIZE):
        ours = [end for other, end in zip(run.rank, run.end, strict=True) if other == rank]
        assert ours == pytest.approx(theirs[rank], abs=5e-5), rank
    assert run.bytes_out == pytest.approx(sum(sent), rel=0.001)
    assert run.coding == 0


TWO, THREE = (1 << 16, 1 << 18), (1 << 16, 2 << 20, 1 << 18)
"""Numbers of matrices that travel each by itself, the last one first; behind them a vector, with the header."""
TOGETHER: list[tuple[str, dict[str, Any], Sequence[int], float]] = [
    ("all-reduce", {}, THREE, 3e8),
    ("all-reduce", {}, TWO, 1e7),
    ("all-reduce", {}, TWO, 1e10),
    ("local-sgd", {"sync_every": 2}, TWO, 1e7),
    ("all-reduce", {"compress": "half"}, TWO, 1e7),
    ("all-reduce", {"compress": "sign", "reduce": "gather"}, TWO, 1e7),
    ("all-reduce", {"compress": "sign", "reduce": "two-phase"}, TWO, 1e7),
]


@pytest.mark.parametrize(("strategy", "settings", "parts", "bandwidth"), TOGETHER)
def test_parts_share_links_as_they_do_in_the_virtual_world(
    strategy: str, settings: dict[str, Any], parts: Sequence[int], bandwidth: float
) -> None:
    """Latencies are long, so that it tells whether they pass one after the other."""
    size, steps, latency = 3, 2, 3e-3
    world = VirtualWorld(size, compute=COMPUTE, network=Network(latency=latency, bandwidth=bandwidth))
    theirs = world.run(lambda wire: in_parts(wire, strategy, settings, parts, steps))
    links, coded = Links(text="", latency=latency, bandwidth=bandwidth, is_mesh=True), sum(parts)
    case = Case(workers=size, steps=steps, parameters=coded + 2, busy=Modelled(compute=COMPUTE), links=links)
    own, reduction = reduction_in(strategy, settings)
    if reduction is not None:
        matrices = [((1, numel),) for numel in reversed(parts)]
        case = replace(case, codes=codes_of(reduction, coded, size, case.nbytes, CodingCost(), matrices))
    run = times_of(strategy, own).play(case)
    for rank in range(size):
        ours = [end for other, end in zip(run.rank, run.end, strict=True) if other == rank]
        assert ours == pytest.approx(theirs[rank], abs=5e-5), rank


def in_parts(wire: Wire, strategy: str, settings: dict[str, Any], parts: Sequence[int], steps: int) -> list[float]:
    """The same as `trained`, with gradients in `parts`."""
    current.enter(wire, thread_only=True)
    join()
    shapes = [(2,), *((1, numel) for numel in parts)]
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])
    optimizer: Any = distribute(torch.optim.SGD(model, lr=0.01), model, strategy=strategy, **settings)
    began, ends = wire.clock.now(), list[float]()
    for _ in range(steps):
        optimizer.zero_grad()
        torch.stack([x.mean() for x in model]).sum().backward()
        optimizer.step()
        ends.append(wire.clock.now() - began)
    current.here().leave()
    return ends


def twin(strategy: str, settings: dict[str, Any], links: Links | None = None, size: int = SIZE, **cost: float) -> Case:
    """The case of the model of `trained`: one matrix, and a bias that is not compressed."""
    case = Case(
        workers=size,
        steps=STEPS,
        parameters=PARAMETERS + 1,
        busy=Modelled(compute=COMPUTE),
        links=links or Links(text="", latency=LATENCY, bandwidth=BANDWIDTH, is_mesh=True),
    )
    reduction = reduction_in(strategy, settings)[1]
    if reduction is None:
        return case
    matrices = [((1, PARAMETERS - 1),)]
    return replace(case, codes=codes_of(reduction, PARAMETERS - 1, size, case.nbytes, CodingCost(**cost), matrices))


@pytest.mark.parametrize(
    ("settings", "vectors"),
    [
        ({"compress": "half"}, (1, 1)),
        ({"compress": "sign", "reduce": "gather"}, (1, SIZE)),
        ({"compress": "sign", "reduce": "two-phase"}, (1 + 1 / SIZE, 2)),
        ({"compress": "sign", "reduce": "hierarchical"}, (1, SIZE)),
    ],
)
def test_encoding_and_decoding_take_their_time(settings: dict[str, Any], vectors: tuple[float, float]) -> None:
    """Coding so many vectors in each step of a worker takes its time, before and after their messages."""
    cost = {"encode": 3e-8, "decode": 1e-8}
    free, dear = (
        times_of("all-reduce", {}).play(twin("all-reduce", settings, **arguments)) for arguments in ({}, cost)
    )
    seconds = (PARAMETERS - 1) * (vectors[0] * cost["encode"] + vectors[1] * cost["decode"])
    assert dear.coding == pytest.approx(STEPS * SIZE * seconds)
    assert max(dear.end) - max(free.end) == pytest.approx(STEPS * seconds, rel=0.1)
    assert dear.bytes_out == free.bytes_out


def test_codes_of_large_vectors_are_as_long_as_their_codec_says() -> None:
    """All parts of what travels, of matrices and a rest."""
    numel = 3 * 2**20 + 700
    for name, of_all in (("half", 2 * numel), ("qsgd", None)):
        reduction = reduction_in("all-reduce", {"compress": name})[1]
        assert reduction is not None and isinstance(reduction.codec, Codec)
        codes = codes_of(reduction, numel, 2, 4 * numel + 48, CodingCost())
        assert codes.numel == numel and codes.dense == 48
        assert [each for each, _ in codes.parts] == [nbytes // 4 for nbytes in parts_of(4 * numel)]
        assert of_all is None or sum(nbytes for _, nbytes in codes.parts) == of_all
        assert all(nbytes == reduction.codec.wire_bytes(((each,),)) for each, nbytes in codes.parts)
