"""Every topology: weights that add up, ways to everyone, and gaps as the closed forms have them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quorate.core.errors import ConfigurationError
from quorate.gossip.topology import topologies, topology_of
from quorate.gossip.topology.groups import group_size_near_root
from quorate.gossip.topology.mixing import matrix, mixing_of

NAMES = [name for name in topologies.names() if topologies.get(name).__module__.startswith("quorate.gossip.topology")]
SIZES = [1, 2, 3, 5, 8, 12, 16]


def made(name: str, size: int, folder: Path) -> Any:
    """The topology of that name; a one-way graph that is not regular for the file. Skips sizes that it refuses."""
    if name == "file":
        lines = [f"{rank} -> {(rank + 1) % size}" for rank in range(size) if size > 1]
        lines += [f"0 -> {rank}  # as well" for rank in range(2, size)]
        (folder / "graph.txt").write_text("\n".join(lines))
        name = f"file:path={folder / 'graph.txt'}"
    if name == "bipartite-exponential" and size % 2 and size > 1:
        pytest.skip("refused for odd sizes")
    return topology_of(name, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
class TestEveryTopology:
    def test_columns_add_up_to_1_and_so_do_rows_where_that_is_promised(
        self, name: str, size: int, tmp_path: Path
    ) -> None:
        topology = made(name, size, tmp_path)
        for round in range(topology.cycle(size)):
            weights = matrix(topology, size, round)
            assert np.allclose(weights.sum(axis=0), 1.0, atol=1e-12)
            assert (weights >= 0.0).all()
            assert (np.diag(weights) > 0.0).all()
            if topology.is_balanced:
                assert np.allclose(weights.sum(axis=1), 1.0, atol=1e-12)
            if not topology.directed:
                assert np.allclose(weights, weights.T, atol=1e-15)

    def test_what_one_gives_is_what_the_other_gets(self, name: str, size: int, tmp_path: Path) -> None:
        topology = made(name, size, tmp_path)
        for round in range(topology.cycle(size)):
            given = {(r, e.peer, e.weight) for r in range(size) for e in topology.out_edges(r, size, round)}
            got = {(e.peer, r, e.weight) for r in range(size) for e in topology.in_edges(r, size, round)}
            assert given == got
            for rank in range(size):
                peers = [edge.peer for edge in topology.out_edges(rank, size, round)]
                assert peers[0] == rank
                assert len(set(peers)) == len(peers)

    def test_over_some_cycles_there_is_a_way_from_everyone_to_everyone(
        self, name: str, size: int, tmp_path: Path
    ) -> None:
        topology = made(name, size, tmp_path)
        reach = np.eye(size, dtype=bool)
        for round in range(topology.cycle(size) * size):
            reach = (matrix(topology, size, round) @ reach) > 0
        assert reach.all()
        assert mixing_of(topology, size).gap > 0


@pytest.mark.parametrize("size", [8, 16, 32])
def test_gaps_are_those_of_the_closed_forms(size: int) -> None:
    def gap(name: str) -> float:
        return mixing_of(topology_of(name, size), size).gap

    assert gap("ring") == pytest.approx((2 / 3) * (1 - math.cos(2 * math.pi / size)), rel=1e-6)
    assert gap("exponential") == pytest.approx(2 / (1 + math.log2(size)), rel=1e-6)
    assert gap("complete") == pytest.approx(1.0)
    assert gap("star") == pytest.approx(1 / size, rel=1e-6)
    assert gap("path") == pytest.approx((2 / 3) * (1 - math.cos(math.pi / size)), rel=1e-6)
    if size == 16:
        assert gap("torus") == pytest.approx((2 / 5) * (1 - math.cos(2 * math.pi / 4)), rel=1e-6)


@pytest.mark.parametrize(("size", "rounds"), [(1, 1), (2, 1), (4, 2), (8, 3), (16, 4), (32, 5), (64, 6)])
def test_one_peer_exponential_is_exact_after_log2_rounds_for_powers_of_two(size: int, rounds: int) -> None:
    assert mixing_of(topology_of("one-peer-exponential", size), size).exact_after == rounds


@pytest.mark.parametrize(("size", "off"), [(12, 0.042), (24, 0.021)])
def test_elsewhere_it_comes_near(size: int, off: float) -> None:
    topology = topology_of("one-peer-exponential", size)
    product = np.eye(size)
    for round in range(topology.cycle(size)):
        product = matrix(topology, size, round) @ product
    assert np.abs(product - 1 / size).max() == pytest.approx(off, abs=6e-4)
    mixing = mixing_of(topology, size)
    assert mixing.exact_after is None
    assert 0.25 < mixing.gap < 1.0


def test_hierarchical_is_exact_where_hosts_are_few() -> None:
    assert mixing_of(topology_of("hierarchical:per_host=4", 8), 8).exact_after == 2
    first = matrix(topology_of("hierarchical:per_host=2", 6), 6, 0)
    assert np.allclose(first[:2, :2], 0.5)
    assert first[0, 2:].sum() == 0


@pytest.mark.parametrize(
    ("text", "size", "words"),
    [
        ("rong", 4, 'unknown topology "rong"; did you mean "ring"'),
        ("random:degree=0", 4, "degree is 0"),
        ("random:degrees=3", 4, "unknown setting of random"),
        ("random:degree", 4, "is not a setting"),
        ("random:degree=many", 4, "should be a whole number"),
        ("file", 4, "needs settings"),
        ("file:path=/nowhere/at/all", 4, "cannot be read"),
        ("hierarchical:per_host=0", 4, "per_host is 0"),
        ("bipartite-exponential", 5, "5 workers do not form pairs"),
    ],
)
def test_what_is_refused(text: str, size: int, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        topology_of(text, size)


@pytest.mark.parametrize(
    ("lines", "size", "words"),
    [
        ("0 1\n1 two", 3, "line 2 of"),
        ("0 0", 2, "leads from rank 0 to itself"),
        ("0 1\n2 3", 4, "no path between rank 0 and rank 2"),
        ("0 -> 1\n1 -> 2", 3, "no path between rank 0 and rank 1"),
        ("0 1\n1 5", 3, "names rank 5, and there are 3 workers"),
    ],
)
def test_files_that_are_no_graph_for_so_many(lines: str, size: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(lines)
    with pytest.raises(ConfigurationError, match=words):
        topology_of(f"file:path={tmp_path / 'graph.txt'}", size)


def test_a_file_of_edges_that_lead_both_ways_has_metropolis_weights(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text("# a path\n0 1\n1 2\n")
    topology = topology_of(f"file:path={tmp_path / 'graph.txt'}", 3)
    assert not topology.directed
    assert np.allclose(matrix(topology, 3, 0), [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]])


def test_drawn_graphs_are_the_same_for_equal_seeds_only() -> None:
    def graph(seed: int) -> list[Any]:
        topology = topology_of(f"random:degree=3,seed={seed}", 12)
        return [topology.out_edges(rank, 12, 0) for rank in range(12)]

    assert graph(1) == graph(1)
    assert graph(1) != graph(2)


@pytest.mark.parametrize(
    ("size", "near"), [(2, 2), (4, 2), (8, 4), (16, 4), (32, 8), (64, 8), (128, 16), (512, 32), (1024, 32)]
)
def test_groups_near_the_root(size: int, near: int) -> None:
    assert group_size_near_root(size) == near
