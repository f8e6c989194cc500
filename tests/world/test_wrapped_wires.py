"""The wrappers over real processes: the same counts and the same ends as over virtual workers."""

from __future__ import annotations

import functools

import torch

from quorate.core.contracts import Message, Wire
from quorate.wire.metered import Metered
from quorate.wire.virtual.world import VirtualWorld
from tests.support.delayed import Delayed
from tests.support.faulty import Fault, Faulty
from tests.support.processes import outcomes_real, run_real


def counted(wire: Wire) -> dict[str, int]:
    metered = Metered(Delayed(wire, lambda operation, number: 0.001))
    for _ in range(3):  # by messages at first, by the backend afterwards
        metered.all_reduce(torch.ones(1001)).wait()
        metered.broadcast(torch.ones(7, dtype=torch.float64), 1).wait()
    metered.all_gather(torch.ones(wire.rank + 1)).wait()
    metered.send(Message((torch.ones(5),)), (wire.rank + 1) % wire.size, "t").wait()
    metered.receive(None, "t").wait()
    meter = metered.meter
    return {**{f"out {k}": n for k, n in meter.bytes_out.items()}, **{f"in {k}": n for k, n in meter.bytes_in.items()}}


def test_real_and_virtual_workers_count_the_same_bytes() -> None:
    assert run_real(3, counted) == VirtualWorld(3).run(counted)


def stopped(faults: list[Fault], wire: Wire) -> int:
    faulty, done = Faulty(wire, faults), 0
    for _ in range(6):
        faulty.all_reduce(torch.ones(100)).wait()
        done += 1
    return done


def test_a_worker_that_stops_ends_the_others_with_its_name() -> None:
    for victim in range(3):
        outcomes = outcomes_real(3, functools.partial(stopped, [Fault(kind="stop", rank=victim, at=4)]))
        assert outcomes[victim].exit_code == -9
        for rank in {0, 1, 2} - {victim}:
            assert f"rank {victim} " in outcomes[rank].error_message
            assert outcomes[rank].error_type is not None
            assert outcomes[rank].error_type.__name__ == "PeerFailed"
