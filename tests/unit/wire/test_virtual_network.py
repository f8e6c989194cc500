"""What the virtual network costs, held against the formulas worked out by hand."""

from __future__ import annotations

import pytest

from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.network import Link, Network, collective_seconds

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
    assert collective_seconds(PLAIN, operation, nbytes, root) == pytest.approx(seconds)
    assert collective_seconds(PLAIN, operation, nbytes[:1], 0) == 0.0


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
