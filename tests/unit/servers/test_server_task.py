"""One server that has lost the other holder of its parts, told by messages what workers and that one would send it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from quorate.core.contracts import Message, Wire
from quorate.core.servers import ServerTerms
from quorate.core.vectors import bare_layout
from quorate.replica.plain_step import options_of
from quorate.replica.replica import Replica
from quorate.servers.server_link import READ
from quorate.servers.server_task import ServerTask
from quorate.servers.setting_out import Receiver
from quorate.servers.shard import Shard, cuts_of
from quorate.wire.virtual.world import VirtualWorld

TERMS = ServerTerms(servers=(0, 3), mode="async", replication=2)


class Server:
    """That of rank 0, with both parts of two parameters; ranks 1 and 2 are workers, rank 3 the other server."""

    def __init__(self, wire: Wire) -> None:
        torch.manual_seed(0)
        model = torch.nn.ParameterList(torch.zeros(4) for _ in range(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        self.replica = Replica(optimizer, torch.optim.SGD, model, lambda *_, **__: 0, None)
        self.cuts = cuts_of(bare_layout(self.replica.layout), 2)
        self.wire = wire.channel("servers")
        receiver = Receiver(self.replica, lambda part: self.cuts[part])
        self.task = ServerTask(self.wire, TERMS, range(1, 3), 0, receiver, name="main", coding=None)
        self.options = options_of(optimizer)

    def sets_out(self, era: int) -> None:
        self.task.set_out({part: Shard(self.replica, cut) for part, cut in enumerate(self.cuts)}, era)


def pushed(options: Any, era: int, number: int) -> Message:
    header = {"kind": "push", "stretch": era, "number": number, "version": 0, "count": 1, "reads": True}
    header |= {
        "options": options,
        "draw": 0,
        "has read": 0,
        "has gradient": True,
        "has edit": False,
        "unused": [[], []],
    }
    return Message((torch.ones(4), torch.ones(4)), header)


def played(worker: Callable[[Wire, Callable[..., None], Callable[[], Message]], Any]) -> list[Any]:
    """What workers 1 and 2 find; `worker` is given what sends to the server, and what takes its next answer."""

    def live(wire: Wire) -> Any:
        if wire.rank == 0:
            server = Server(wire)
            server.sets_out(1)
            wire.clock.sleep(0.5)
            server.sets_out(2)
            wire.clock.sleep(2.0)
            server.task.close()
            return None
        if wire.rank == 3:
            return None
        channel = wire.channel("servers")
        tasks = channel.channel("server")

        def send(kind: str, era: int = 1, **header: Any) -> None:
            tasks.send(Message(header={"kind": kind, "stretch": era, **header}), 0, "asked")

        def push(era: int, number: int) -> None:
            model = torch.nn.ParameterList(torch.zeros(4) for _ in range(2))
            options = options_of(torch.optim.SGD(model.parameters(), lr=1.0))
            tasks.send(pushed(options, era, number), 0, "asked")

        def take() -> Message:
            return channel.receive(0, READ).wait(10.0)[1]

        send.push = push  # type: ignore[attr-defined]
        return worker(wire, send, take)

    return VirtualWorld(4, timeout=20.0).run(live)[1:3]


def numbers(message: Message) -> list[float]:
    return [float(x.sum()) for x in message.tensors]


def rests(send: Any, take: Callable[[], Message]) -> Message:
    for kind in ("pauses", "read"):
        send(kind)
    while True:
        message = take()
        if message.header["number"] == 0:
            return message


def test_it_speaks_for_the_dead_as_soon_as_a_worker_says_so() -> None:
    def worker(wire: Wire, send: Any, take: Callable[[], Message]) -> Any:
        if wire.rank == 2:
            wire.clock.sleep(1.0)
            return None
        wire.clock.sleep(0.1)
        send.push(1, 1)
        first = take()
        send("again", number=1, dead=[3])
        return numbers(first), numbers(take())

    (first, again), _ = played(worker)
    assert first == [-2.0]  # its own part; the step was of one gradient of two
    assert again == [-2.0, -2.0]


@pytest.mark.parametrize("has_read", [True, False])
def test_what_was_read_at_a_rest_can_be_read_again_until_all_have_it(has_read: bool) -> None:
    def worker(wire: Wire, send: Any, take: Callable[[], Message]) -> Any:
        wire.clock.sleep(0.1)
        send.push(1, 1)
        take()
        rests(send, take)
        if wire.rank == 1:
            send("has read")
            wire.clock.sleep(1.0)  # the server's own worker has set out
            send.push(2, 1)
            return numbers(take())
        if has_read:
            send("has read")
        wire.clock.sleep(1.4)
        if not has_read:
            send("again", number=0, dead=[3])
            last = take()
            assert list(last.header["there"]) == [1, 2]
            send("has read")
            return numbers(last)
        return None

    ahead, behind = played(worker)
    assert ahead == [-2.0] * (1 if has_read else 2)  # the second stretch begins at the server's own replica
    assert behind == (None if has_read else [-4.0, -4.0])
