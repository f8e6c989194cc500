"""Between real hosts an urgent message does not wait for what was sent before it."""

from __future__ import annotations

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
