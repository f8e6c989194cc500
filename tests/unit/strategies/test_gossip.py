"""The laws of gossip, among virtual workers, under random speeds, networks, graphs and ends."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError, PeerFailed
from quorate.gossip.topology import topology_of
from quorate.gossip.topology.mixing import matrix
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.gossip import RATE, Told, assert_nothing_is_lost, run, speeds, train
from tests.support.joined import joined

SIZES = [1, 2, 3, 5]
CONSERVING = ["d-psgd", "sgp", "osgp", "ad-psgd", "d2"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CONSERVING)
def test_the_mean_moves_by_the_mean_of_all_gradients(name: str, size: int) -> None:
    pauses = speeds(random.Random(size), size)
    assert_nothing_is_lost(run(size, lambda w: train(w, 6, pauses=pauses, strategy=name)))


@pytest.mark.seeds(15, 60)
def test_random_schedules(seed: int) -> None:
    draw = random.Random(seed)
    size, name = draw.choice(SIZES[1:]), draw.choice(CONSERVING)
    graphs = ["ring", "complete", "torus", "star", "wheel", f"random:degree=2,seed={seed}"]
    if name != "d2":
        graphs += ["random-matching", "hierarchical:per_host=2"]
    if name in ("sgp", "osgp"):
        graphs += ["exponential", "one-peer-exponential"]
    settings: dict[str, Any] = {"topology": draw.choice(graphs)}
    if name == "osgp":
        settings["bound"] = draw.choice([0, 1, 3])
    if name in ("d-psgd", "ad-psgd"):
        settings["overlap"] = draw.random() < 0.5
    steps = [draw.randint(4, 9) for _ in range(size)] if draw.random() < 0.6 else [6] * size
    if name == "d2":
        steps = [6] * size  # its corrections cancel out only as long as all take part
    pauses = speeds(draw, size)
    network = Network(latency=draw.choice([0.0, 1e-4, 5e-3]), bandwidth=draw.choice([1e6, 1e9]))
    evaluates = draw.choice([(), (1, 3), (2,)])
    found = run(
        size,
        lambda w: train(w, steps[w.rank], pauses=pauses, evaluates=evaluates, strategy=name, **settings),
        seed=seed,
        network=network,
    )
    assert_nothing_is_lost(found)
    for number in range(len(evaluates)):
        masses = [told.masses[number] for told in found]
        assert sum(masses) == pytest.approx(size, abs=1e-9)
        mean = sum(m * told.given[number] for m, told in zip(masses, found, strict=True)) / size
        for told in found:
            assert torch.equal(told.means[number], found[0].means[number])
            assert torch.allclose(told.means[number], mean, atol=1e-5)


@pytest.mark.parametrize("name", ["sgp", "osgp"])
@pytest.mark.parametrize("seed", range(4))
def test_weights_make_graphs_right_that_are_not_regular(name: str, seed: int, tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text("0 -> 1\n1 -> 2\n2 -> 3\n3 -> 0\n0 -> 2\n0 -> 3\n")
    graph = f"file:path={tmp_path / 'graph.txt'}"
    found = run(4, lambda w: train(w, 7, evaluates=(4,), strategy=name, topology=graph), seed=seed)
    masses = [told.masses[0] for told in found]
    assert max(masses) > 1.2
    assert sum(masses) == pytest.approx(4, abs=1e-9)
    assert_nothing_is_lost(found)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_on_a_complete_graph_d_psgd_is_averaging(size: int) -> None:
    found = run(size, lambda w: train(w, 5, evaluates=(4,), strategy="d-psgd", topology="complete", overlap=False))
    total = sum(told.replicas[0] for told in found) / size
    for told in found:  # x = mean of all before the update - rate * own gradient
        own = told.replicas[0] + RATE * told.steps[3]
        others = found[0].replicas[0] + RATE * found[0].steps[3]
        assert torch.allclose(own, others, atol=1e-6)
        assert torch.allclose(told.means[0], total, atol=1e-6)


@pytest.mark.parametrize("name", CONSERVING)
@pytest.mark.parametrize("size", [2, 4, 5])
def test_an_evaluation_changes_nothing(name: str, size: int) -> None:
    """What is under way when all rest is taken in by the step that would have taken it in anyhow."""
    if name == "ad-psgd" and size > 2:
        size = 2  # among more it is a matter of time who asks whom first
    settings: dict[str, Any] = {"strategy": name}
    if name in ("d-psgd", "ad-psgd"):
        settings["overlap"] = True
    with_, without = (
        run(size, lambda w, e=evaluates: train(w, 8, pauses=lambda rank, step: 0.01, evaluates=e, **settings))
        for evaluates in ((2, 3, 6), ())
    )
    for one, other in zip(with_, without, strict=True):
        assert torch.allclose(one.end, other.end, atol=1e-6)
        assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(one.steps, other.steps, strict=True))


@pytest.mark.parametrize("topology", ["ring", "random:degree=3", "star"])
def test_d_psgd_is_the_recursion_of_the_paper(topology: str) -> None:
    size, steps = 5, 4
    found = run(size, lambda w: train(w, steps + 1, evaluates=(steps,), strategy="d-psgd", topology=topology))
    weights = torch.tensor(matrix(topology_of(topology, size), size, 0))
    x = torch.stack([told.begin for told in found])
    for step in range(steps):
        x = weights @ x - RATE * torch.stack([told.steps[step] for told in found])
    mixed_once_more = weights @ x  # what was under way when all rested: the next step takes it in
    for rank, told in enumerate(found):
        assert torch.allclose(told.replicas[0], x[rank], atol=2e-6)
        assert torch.allclose(told.given[0], mixed_once_more[rank], atol=2e-6)


@pytest.mark.parametrize("overlap", [True, False])
def test_weight_decay_of_d_psgd_is_that_of_the_parameters_before_they_are_mixed(overlap: bool) -> None:
    size, steps, decay = 5, 4, 0.5
    settings: dict[str, Any] = {"strategy": "d-psgd", "topology": "ring", "overlap": overlap}
    found = run(size, lambda w: train(w, steps + 1, decay=decay, evaluates=(steps,), **settings))
    weights = torch.tensor(matrix(topology_of("ring", size), size, 0))
    x = torch.stack([told.begin for told in found])
    for step in range(steps):
        x = weights @ x - RATE * (torch.stack([told.steps[step] for told in found]) + decay * x)
    for rank, told in enumerate(found):
        assert torch.allclose(told.replicas[0], x[rank], atol=2e-6)


def test_d2_is_the_recursion_of_the_paper() -> None:
    size, steps = 5, 4
    found = run(size, lambda w: train(w, steps + 1, evaluates=(steps,), strategy="d2", topology="ring"))
    weights = (torch.eye(size, dtype=torch.float64) + torch.tensor(matrix(topology_of("ring", size), size, 0))) / 2
    before: torch.Tensor | None = None
    x = torch.stack([told.begin for told in found])
    for step in range(steps):
        gradient = torch.stack([told.steps[step] for told in found])
        v = x - RATE * gradient
        x, before = weights @ (v if before is None else x + v - before), v
    for rank, told in enumerate(found):
        assert torch.allclose(told.replicas[0], x[rank], atol=2e-6)


def distances(topology: str, size: int) -> list[list[int]]:
    """Steps from each worker to each other along the edges."""
    linked = matrix(topology_of(topology, size), size, 0) > 0
    found = [[0 if a == b else size for b in range(size)] for a in range(size)]
    for _ in range(size):
        for a in range(size):
            for b in range(size):
                found[a][b] = min([found[a][b], *(found[a][c] + 1 for c in range(size) if linked[c][b] and c != b)])
    return found


@pytest.mark.parametrize("topology", ["path", "binary-tree", "star"])
def test_relay_is_the_mean_of_everyone_each_as_old_as_its_way_is_long(topology: str) -> None:
    size, steps = 6, 5
    found = run(size, lambda w: train(w, steps + 1, evaluates=(steps,), strategy="relay", topology=topology))
    far = distances(topology, size)
    x, history = [told.begin for told in found], []
    for step in range(steps):
        history.append([x[rank] - RATE * found[rank].steps[step] for rank in range(size)])
        x = []
        for rank in range(size):
            parts = [history[step - max(0, far[rank][j] - 1)][j] for j in range(size) if far[rank][j] <= step + 1]
            x.append(sum(parts) / len(parts))
    for rank, told in enumerate(found):
        assert torch.allclose(told.replicas[0], x[rank], atol=2e-6)


@pytest.mark.parametrize(
    "name", ["d-psgd", "sgp", "osgp", "ad-psgd", "d2", "relay", "choco-sgd", "dcd-psgd", "ecd-psgd"]
)
def test_momentum_stays_each_workers_own(name: str) -> None:
    found = run(3, lambda w: train(w, 4, heavy=0.9, strategy=name))
    for told in found:
        expected = torch.zeros_like(told.begin)
        for gradient in told.steps:
            expected = 0.9 * expected + gradient
        assert told.momentum is not None
        assert torch.allclose(told.momentum, expected, atol=1e-5)


def test_ad_psgd_has_no_circle_of_waiting_on_random_graphs(times: int) -> None:
    for seed in range(12 * times):
        draw = random.Random(seed)
        size = draw.randint(2, 6)
        graph = f"random:degree={draw.randint(1, 4)},seed={seed}"
        pauses = speeds(draw, size)
        steps = [draw.randint(1, 4) for _ in range(size)]
        overlap = draw.random() < 0.5
        found = run(
            size,
            lambda w, s=steps, p=pauses, g=graph, o=overlap: train(  # type: ignore[misc]
                w, s[w.rank], pauses=p, strategy="ad-psgd", topology=g, overlap=o
            ),
            seed=seed,
        )
        assert_nothing_is_lost(found)


def test_under_ad_psgd_nobody_waits_for_the_slow_one() -> None:
    took: dict[int, float] = {}

    def timed(world: Any) -> Told:
        clock = world.wire.clock
        begin = clock.now()
        ends: list[float] = []
        told = train(
            world,
            2 if world.rank == 3 else 10,
            strategy="ad-psgd",
            pauses=lambda rank, step: ends.append(clock.now()) or (1.0 if rank == 3 else 0.0),  # type: ignore[func-returns-value]
        )
        took[world.rank] = ends[-1] - begin
        return told

    assert_nothing_is_lost(run(4, timed))
    assert max(took[rank] for rank in range(3)) < 0.3


@pytest.mark.parametrize("name", ["sgp", "ad-psgd"])
def test_where_all_are_to_stop_a_death_is_told_to_them(name: str) -> None:
    @joined
    def live(world: quorate.World) -> Any:
        return train(world, 30, crashes=5 if world.rank == 2 else None, strategy=name, on_death="stop")

    outcomes = VirtualWorld(4, timeout=60.0).outcomes(live)
    for rank, outcome in enumerate(outcomes):
        if rank == 2:
            assert outcome.is_crashed
        else:
            assert isinstance(outcome.error, PeerFailed), outcome
            assert 2 in outcome.error.ranks


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "d-psgd", "topology": "exponential"}, "lead one way"),
        ({"strategy": "ad-psgd", "topology": "one-peer-exponential"}, "lead one way"),
        ({"strategy": "d2", "topology": "random-matching"}, "stay the same"),
        ({"strategy": "relay", "topology": "ring"}, "needs a tree"),
        ({"strategy": "osgp", "bound": -1}, "bound is -1"),
        ({"strategy": "sgp", "topology": "rings"}, "unknown topology"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        run(4, lambda w: train(w, 1, **settings))
