"""How long groups of workers take to exchange something, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorate.core.errors import ConfigurationError
from quorate.planning.cluster import Cluster, Way

ALONE = Cluster(workers=4, memory=1e9, bandwidth=100.0, latency=1.0)
"""Each on a host of its own: 100 bytes a second, and a second for each message."""
ON_HOSTS = Cluster(
    workers=8, memory=1e9, bandwidth=100.0, latency=1.0, per_host=4, inside_bandwidth=1000.0, inside_latency=0.1
)


def test_a_ring() -> None:
    assert ALONE.all_reduce(400, 4, 1) == pytest.approx(6 * (1 + 100 / 100))
    assert ALONE.gather(400, 4, 1) == pytest.approx(6)
    assert ALONE.all_reduce(400, 1, 1) == 0


def test_on_one_host() -> None:
    """Neighbours do not use the port."""
    assert ON_HOSTS.all_reduce(400, 4, 1) == pytest.approx(6 * (0.1 + 100 / 1000))
    assert ON_HOSTS.all_reduce(400, 2, 2) == pytest.approx(2 * (0.1 + 200 / 1000))


def test_across_hosts_all_groups_share_the_port() -> None:
    """Two workers, four ranks apart: four such groups send at once."""
    assert ON_HOSTS.all_reduce(400, 2, 4) == pytest.approx(2 * (1 + 4 * 200 / 100))


def test_across_hosts_with_several_on_each() -> None:
    """All eight: a sum on each host, and one group on the ports."""
    inside, between = 6 * (0.1 + 100 / 1000), 2 * (1 + 200 / 100)
    assert ON_HOSTS.all_reduce(400, 8, 1) == pytest.approx(inside + between)


def test_a_message_to_the_next_stage() -> None:
    assert ALONE.send(100, 1) == pytest.approx(1 + 1)
    assert ON_HOSTS.send(100, 4) == pytest.approx(1 + 4), "four workers of a host send at once"
    assert ON_HOSTS.send(100, 1) == pytest.approx(1 + 1), "the last worker of a host has its next one on another"
    on_one = Cluster(
        workers=4, memory=1e9, bandwidth=100.0, latency=1.0, per_host=4, inside_bandwidth=1000.0, inside_latency=0.1
    )
    assert on_one.send(100, 2) == pytest.approx(0.1 + 0.1)


def test_in_pieces() -> None:
    pieces = Cluster(
        workers=8, memory=1e9, bandwidth=100.0, latency=1.0, per_host=4, inside_bandwidth=1000.0, inside_latency=0.1,
        sends_pieces=True,
    )  # fmt: skip
    assert pieces.send(100, 4, tensor=4) == pytest.approx(1 + 4 * 25 / 100 + 3 * (0.1 + 25 / 1000))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"workers": 0}, "a plan needs at least one worker, not 0"),
        ({"memory": 0}, "the memory of a worker is above 0"),
        ({"per_host": 3, "inside_bandwidth": 1.0}, "4 workers are not on hosts of 3; give a multiple, .*"),
        ({"per_host": 2}, "the inside bandwidth of a worker is above 0"),
    ],
)
def test_what_cannot_be(wrong: dict[str, float], sentence: str) -> None:
    values: dict[str, float] = {"workers": 4, "memory": 1, "bandwidth": 1, "latency": 0, **wrong}
    with pytest.raises(ConfigurationError, match=f"^{sentence}$"):
        Cluster(**values)  # type: ignore[arg-type]


def test_an_axis_whose_bytes_go_another_way() -> None:
    by_sockets = replace(ON_HOSTS, ways={"tensor": Way(0.2, 500.0)})
    assert by_sockets.of_axis("tensor").all_reduce(400, 4, 1) == pytest.approx(6 * (0.2 + 100 / 500))
    assert by_sockets.of_axis("shards") is by_sockets
    between = by_sockets.of_axis("tensor").all_reduce(400, 2, 4)
    assert between == ON_HOSTS.all_reduce(400, 2, 4), "the port of a host is the same for all"
    assert replace(ALONE, ways={"stages": Way(2.0, 50.0)}).of_axis("stages").send(100, 1) == pytest.approx(2 + 2)


def test_several_exchanges_have_the_latency_of_each() -> None:
    one = Cluster(workers=4, memory=1.0, bandwidth=100.0, latency=2.0)
    assert one.all_reduce(400.0, 4, 1, 5) - one.all_reduce(400.0, 4, 1) == 2 * 3 * 4 * 2.0
    assert one.gather(400.0, 4, 1, 5) == one.all_reduce(400.0, 4, 1, 5) / 2
