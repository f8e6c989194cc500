"""Networks as they are written, and what messages and means take on them."""

from __future__ import annotations

import math

import pytest

from quorate.core.errors import ConfigurationError
from quorate.simulation.links import Links, Taken, in_line, links_from, parts_of


def test_what_is_written() -> None:
    assert links_from("1ms:10Gbit") == Links(text="1ms:10Gbit", latency=1e-3, bandwidth=1.25e9, per_host=1)
    both = links_from("1ms:1GB:mesh:halving")
    assert (both.is_mesh, both.reduces) == (True, "halving")
    hosts = links_from("1ms:1GB:per-host=8:leader=200us")
    assert (hosts.per_host, round(hosts.leader, 9), hosts.ports(17), hosts.ports(8)) == (8, 200e-6, 3, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("50us", "write LATENCY:BANDWIDTH"),
        ("50us:fast", '"fast" is not a bandwidth'),
        ("soon:10Gbit", '"soon" in "soon:10Gbit" is not a duration'),
        ("50us:10Gbit:tree", '"tree" is not known'),
        ("50us:0", "the bandwidth must be above 0"),
        ("50us:10Gbit:per-host=0", "per-host is a number of workers (at least 1)"),
        ("50us:10Gbit:per-host=some", "per-host is a number of workers (at least 1)"),
        ("50us:10Gbit:per-host=8:mesh", "no :mesh"),
        ("50us:10Gbit:leader=soon", '"soon" in'),
    ],
)
def test_what_is_none_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        links_from(text)
    assert sentence in str(refused.value)


def test_means_take_what_the_formulas_say() -> None:
    ring, halving = links_from("1ms:1MB"), links_from("1ms:1MB:halving")
    assert ring.all_reduce(1000, 8) == pytest.approx((2 * 7 * 1e-3, 2 * 7 / 8 * 1e-3))
    assert halving.all_reduce(1000, 8) == pytest.approx((2 * 3 * 1e-3, 2 * 7 / 8 * 1e-3))
    assert halving.all_reduce(1000, 9) == pytest.approx((2 * 4 * 1e-3, 2 * 8 / 9 * 1e-3))
    assert ring.all_reduce(1000, 1).seconds == halving.all_reduce(1000, 1).seconds == 0.0
    assert ring.all_reduce(1000, 8).seconds == pytest.approx(14e-3 + 1.75e-3)


def test_exchanges_transmit_one_after_the_other_and_latencies_pass_beside_that() -> None:
    three, none = Taken(5.0, 3.0), list[tuple[float, Taken]]()
    assert in_line(none) == 0.0 and in_line([(1.0, three)]) == 9.0
    assert in_line([(0.0, three)] * 4) == 5 + 4 * 3
    assert in_line([(0.0, three), (2.0, three), (10.0, three)]) == 18.0, "the third finds the links idle"
    assert in_line([(0.0, Taken(50.0, 1.0)), (0.0, three)]) == 51.0, "the first may be done last"


def test_one_port_is_shared_and_a_mesh_is_not() -> None:
    assert links_from("1ms:1MB").carrying(1000, 5) == pytest.approx(5e-3)
    assert links_from("1ms:1MB:mesh").carrying(1000, 5) == pytest.approx(1e-3)


def test_of_workers_on_hosts_the_hosts_send() -> None:
    alone, hosts = links_from("1ms:1MB"), links_from("1ms:1MB:per-host=8")
    assert hosts.all_reduce(1000, 32) == alone.all_reduce(1000, 4) and hosts.all_reduce(1000, 8) == (0, 0)
    assert hosts.sent_by_all(1000, 32) == 2 * 3 * 1000 and alone.sent_by_all(1000, 4) == 2 * 3 * 1000
    assert hosts.in_pieces(1 << 20, 32) == pytest.approx(2 * (1e-3 + 3 / 4 * (1 << 20) / 1e6))
    assert alone.in_pieces(1 << 20, 32) == pytest.approx(2 * (1e-3 + 31 / 32 * (1 << 20) / 1e6))
    assert hosts.in_pieces(1000, 32) is hosts.in_pieces(1 << 20, 8) is None
    assert links_from("1ms:1MB:mesh").in_pieces(1 << 20, 32) is None


@pytest.mark.parametrize("nbytes", [0, 4, 1 << 20, (1 << 20) + 1, 100_000_003])
def test_parts_are_all_of_it(nbytes: int) -> None:
    parts = parts_of(nbytes)
    assert sum(parts) == nbytes
    assert len(parts) == 1 + math.ceil(max(0, nbytes - (1 << 20)) / (8 << 20))
