"""Connections between real hosts: an urgent message does not wait for what was sent before it; how TCP sends."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch

from quorate.core.contracts import Message, Wire
from tests.support.hosts import are_possible, hosts
from tests.support.processes import run_real

pytestmark = [
    pytest.mark.on_hosts,
    pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces"),
]


def overtaken(wire: Wire) -> list[str]:
    """What came, in order, where two seconds' worth of numbers were sent first."""
    if wire.rank == 0:
        wire.send(Message((torch.zeros(625_000),)), 1, "x")
        wire.send(Message(header={"is": "urgent"}, urgent=True), 1, "x")
        wire.send(Message(header={"is": "last"}), 1, "x")
        wire.receive(1, "all came").wait()
        return []
    came = [wire.receive(0, "x").wait()[1].header.get("is", "large") for _ in range(3)]
    wire.send(Message(), 0, "all came")
    return came


@pytest.mark.parametrize("encrypted", [False, True])
def test_an_urgent_message_overtakes_a_large_one(encrypted: bool) -> None:
    with hosts(2) as two:
        for host in two:
            host.limit("10mbit")
        environment = {"QUORATE_TLS": "1"} if encrypted else {}
        found = run_real(2, overtaken, on=two, environment=environment)
    assert found[1] == ["urgent", "large", "last"]


def sends_by(wire: Any) -> dict[str, str]:
    """The congestion control of this worker's connections to other hosts, by lane."""
    wire.all_reduce(torch.ones(1 << 18)).wait()  # not by messages, as small ones go
    wire.send(Message(), 1 - wire.rank, "x").wait()
    wire.receive(1 - wire.rank, "x").wait()  # the other one has the sum, so this worker's part of it has been sent
    links = wire.endpoint.mailbox._links
    return {
        lane.value: link.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        for (_, lane), link in links.items()
        if link.sock and not link.is_here
    }


def test_the_congestion_control_is_the_one_that_was_chosen() -> None:
    """Without a choice it is the system's, but for sums, which do not travel by BBR to hosts nearby."""
    with hosts(2) as two:
        usual = two[0].run("cat", "/proc/sys/net/ipv4/tcp_congestion_control").strip()
        known = two[0].run("cat", "/proc/sys/net/ipv4/tcp_available_congestion_control").split()
        other = "cubic" if usual == "reno" else "reno"
        for_sums = "cubic" if usual == "bbr" and "cubic" in known else usual
        assert run_real(2, sends_by, on=two) == [{"usual": usual, "sums": for_sums}] * 2
        chosen = run_real(2, sends_by, on=two, environment={"QUORATE_CONGESTION": other})
        assert chosen == [{"usual": other, "sums": other}] * 2
