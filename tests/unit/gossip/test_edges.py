"""A graph among those that are left: weights add up as before, and it is whole where it can be laid out anew."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from quorate.core.topology import Topology
from quorate.gossip.topology import topology_of
from quorate.gossip.topology.edges import among
from quorate.gossip.topology.mixing import matrix
from tests.unit.gossip.test_topologies import NAMES, made


def is_connected(topology: Topology, size: int, members: list[int]) -> bool:
    """Whether there is a way from everyone to everyone, over a cycle."""
    way = np.eye(size)
    for round in range(size * topology.cycle(size)):
        way = matrix_of(topology, size, members, round) @ way
    return bool((way[np.ix_(members, members)] > 0.0).all())


def matrix_of(topology: Topology, size: int, members: list[int], round: int) -> np.ndarray:
    found = np.zeros((size, size))
    for rank in members:
        for peer, weight in topology.in_edges(rank, size, round):
            found[rank, peer] += weight
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", NAMES)
def test_what_is_given_is_got_among_those_that_are_left(name: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    size = draw.choice([6, 8])
    graph = made(name, size, tmp_path)
    members = sorted(draw.sample(range(size), draw.randint(1, size - 1)))
    laid = among(graph, size, members)
    for round in range(laid.cycle(size)):
        given = {(r, e.peer, e.weight) for r in members for e in laid.out_edges(r, size, round)}
        got = {(e.peer, r, e.weight) for r in members for e in laid.in_edges(r, size, round)}
        assert given == got
        assert {peer for _, peer, _ in given} == set(members)
        weights = matrix_of(laid, size, members, round)
        assert np.allclose(weights.sum(axis=0)[members], 1.0, atol=1e-12)
        if laid.is_balanced:
            assert np.allclose(weights.sum(axis=1)[members], 1.0, atol=1e-12)
        if not laid.directed:
            assert np.allclose(weights, weights.T, atol=1e-15)
    assert is_connected(laid, size, members) or name in ("file", "bipartite-exponential")


def test_it_is_the_graph_of_fewer_workers() -> None:
    laid, fewer = among(topology_of("ring", 8), 8, [0, 2, 3, 7]), topology_of("ring", 4)
    assert np.array_equal(matrix_of(laid, 8, [0, 2, 3, 7], 0)[np.ix_([0, 2, 3, 7], [0, 2, 3, 7])], matrix(fewer, 4, 0))
    assert among(fewer, 4, range(4)) is fewer
    assert among(topology_of("one-peer-exponential", 8), 8, [0, 2, 3]).cycle(8) == 2


def test_pairs_of_an_odd_number_are_what_the_dead_leave() -> None:
    graph = topology_of("bipartite-exponential", 4)
    laid = among(graph, 4, [0, 1, 2])
    assert [edge.peer for edge in laid.out_edges(2, 4, 0)] == [2]
    assert laid.out_edges(2, 4, 0)[0].weight == 1.0
    assert laid.out_edges(0, 4, 0) == graph.out_edges(0, 4, 0)
