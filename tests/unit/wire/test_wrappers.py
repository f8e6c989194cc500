"""Wrappers over a wire: counting, delaying, breaking. They compose, over channels and groups too."""

from __future__ import annotations

import pytest
import torch

from quorate.core.contracts import Message, Wire
from quorate.core.errors import PeerFailed, WireTimeout
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.metered import Metered
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.delayed import Delayed
from tests.support.faulty import Fault, Faulty

FREE = Network(latency=0.0, bandwidth=1e15)


def everything(wire: Wire) -> None:
    """One of each, in a way that makes what is sent uneven over the workers."""
    rank, size = wire.rank, wire.size
    x = torch.ones(10, dtype=torch.float32)
    wire.all_reduce(x.clone()).wait()
    wire.reduce_scatter(x.clone()).wait()
    wire.all_gather(torch.ones(rank + 1)).wait()
    wire.all_to_all([torch.ones(rank + peer) for peer in range(size)]).wait()
    wire.all_to_all_single(torch.ones(130)).wait()
    wire.all_gather_into(torch.zeros(130), lambda into: [x.fill_(1.0) for x in into] and None).wait()
    wire.broadcast(x.clone(), 1).wait()
    wire.reduce(x.clone(), 1).wait()
    wire.gather(torch.ones(2 * rank), 1).wait()
    wire.scatter([torch.ones(peer) for peer in range(size)] if rank == 1 else None, 1).wait()
    wire.barrier().wait()
    wire.send(Message((torch.ones(rank),)), (rank + 1) % size, "ring").wait()
    wire.receive((rank - 1) % size, "ring").wait()
    wire.group([2, 0] if rank != 1 else [1]).all_reduce(torch.ones(4)).wait()
    wire.channel("other").all_reduce(torch.ones(5)).wait()


def test_over_all_workers_bytes_out_are_bytes_in_for_every_operation() -> None:
    def count(wire: Wire) -> Metered:
        metered = Metered(wire)
        everything(metered)
        return metered

    meters = [m.meter for m in VirtualWorld(3, network=FREE).run(count)]
    operations = {op for m in meters for op in m.bytes_out | m.bytes_in}
    assert len(operations) >= 9
    for op in operations - {"send", "receive"}:
        assert sum(m.bytes_out[op] for m in meters) == sum(m.bytes_in[op] for m in meters) > 0 or op == "barrier", op
    assert sum(m.bytes_out["send"] for m in meters) == sum(m.bytes_in["receive"] for m in meters) > 0
    assert meters[0].bytes_out["all_gather"] == 2 * 4 + 2 * 64 * 4
    assert meters[2].bytes_in["all_to_all"] == 2 * 2 * 4 + (0 + 2) * 4 + (1 + 2) * 4
    assert meters[1].bytes_out["broadcast"] == 2 * 40
    both = all_reduce_bytes(16, 2) + all_reduce_bytes(40, 3) + all_reduce_bytes(20, 3)
    assert meters[0].bytes_out["all_reduce"] == both


def test_what_a_worker_sends_to_itself_does_not_count() -> None:
    def count(wire: Wire) -> Metered:
        metered = Metered(wire)
        for peer, numbers in ((wire.rank, 7), (1 - wire.rank, 3)):
            metered.send(Message((torch.ones(numbers),)), peer, "t").wait()
        for _ in range(2):
            metered.receive(None, "t").wait()
        return metered

    for wire in VirtualWorld(2, network=FREE).run(count):
        assert wire.meter.bytes_out["send"] == wire.meter.bytes_in["receive"] == 3 * 4
        assert wire.meter.messages_out["send"] == wire.meter.messages_in["receive"] == 1


def test_results_pass_through_unchanged() -> None:
    def both(wire: Wire) -> bool:
        metered = Delayed(Metered(wire), lambda operation, number: 0.0)
        a = metered.all_gather(torch.full((wire.rank + 1,), float(wire.rank))).wait()
        b = wire.channel("plain").all_gather(torch.full((wire.rank + 1,), float(wire.rank))).wait()
        source, message = (metered.send(Message((), {"a": 1}), wire.rank, "t"), metered.receive(None, "t").wait())[1]
        return (
            all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
            and source == wire.rank
            and message.header == {"a": 1}
        )

    assert all(VirtualWorld(3).run(both))


def test_a_delay_is_suffered_before_the_call_and_by_all_who_wait_for_it() -> None:
    def late(wire: Wire) -> float:
        delayed = Delayed(wire, lambda operation, number: 0.2 if (wire.rank, number) == (1, 2) else 0.0)
        for _ in range(3):
            delayed.all_reduce(torch.ones(1)).wait()
        return wire.clock.now()

    assert VirtualWorld(3, network=FREE).run(late) == pytest.approx([0.2] * 3, abs=1e-6)


def test_a_worker_stops_at_the_stated_call() -> None:
    fault = Fault(kind="stop", rank=1, at=3, operation="all_reduce")
    done = [0, 0, 0]

    def work(wire: Wire) -> None:
        faulty = Faulty(wire, [fault])
        for _ in range(5):
            faulty.barrier().wait()
            faulty.all_reduce(torch.ones(2)).wait()
            done[wire.rank] += 1

    outcomes = VirtualWorld(3).outcomes(work)
    assert fault.fired == 1
    assert done == [2, 2, 2]
    for rank in (0, 2):
        error = outcomes[rank].error
        assert isinstance(error, PeerFailed)
        assert error.ranks == (1,)


def test_a_pause_lasts_as_long_as_stated() -> None:
    fault = Fault(kind="pause", rank=0, at=2, seconds=3.0)

    def work(wire: Wire) -> float:
        faulty = Faulty(wire, [fault])
        for _ in range(4):
            faulty.barrier().wait()
        return wire.clock.now()

    assert VirtualWorld(2, network=FREE).run(work) == pytest.approx([3.0, 3.0], abs=1e-6)
    assert fault.fired == 1


def test_a_dropped_message_is_lost_and_the_next_one_arrives() -> None:
    fault = Fault(kind="drop", rank=0, at=2, operation="send")

    def work(wire: Wire) -> list[int]:
        faulty = Faulty(wire, [fault])
        if wire.rank == 0:
            for number in range(3):
                faulty.send(Message((), {"n": number}), 1, "t").wait()
            return []
        return [faulty.receive(0, "t").wait()[1].header["n"] for _ in range(2)]

    assert VirtualWorld(2).run(work)[1] == [0, 2]
    assert fault.fired == 1


def test_over_a_cut_link_messages_are_lost_and_collectives_time_out_with_the_peers_name() -> None:
    fault = Fault(kind="cut", rank=0, at=1, operation="barrier", peer=2)

    def work(wire: Wire) -> tuple[str, ...]:
        faulty = Faulty(wire, [fault])
        faulty.send(Message((), {"n": 0}), (wire.rank + 1) % 3, "t").wait()
        faulty.receive((wire.rank - 1) % 3, "t").wait()
        try:
            faulty.barrier().wait(timeout=5.0)
        except WireTimeout as error:
            return tuple(map(str, error.ranks))
        return ()

    results = VirtualWorld(3).run(work)
    assert fault.fired == 1
    assert results[0] == ("2",)
    assert results[1] == ("0",)
    assert results[2] == ("0",)
