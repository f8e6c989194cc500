"""Memory that processes have in common: it is seen by all, outlives its maker, and ends with the last that has it."""

from __future__ import annotations

import gc
import os

import pytest
import torch

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError
from quorate.wire.failure import allow_going_on
from quorate.wire.real.loans import find_common, make_common
from quorate.wire.virtual.world import VirtualWorld
from tests.support.processes import outcomes_real, run_real

NBYTES = 1000


def _invited(wire: Wire, source: int, to: int) -> Message:
    """What `source` gives on to `to`."""
    return wire.receive(source, "invitation").wait()[1] if wire.rank == to else Message()


def sees(wire: Wire) -> list[int]:
    if wire.rank == 0:
        common = wire.make_common(NBYTES)
        wire.send(common.invitation, 1, "invitation").wait()
    else:
        common = wire.find_common(_invited(wire, wire.rank - 1, wire.rank))
        if wire.rank + 1 < wire.size:
            wire.send(common.invitation, wire.rank + 1, "invitation").wait()
    common.memory[wire.rank] = wire.rank + 1
    wire.barrier().wait()
    return common.memory[: wire.size + 1].tolist()


def test_all_see_what_each_writes() -> None:
    assert run_real(3, sees) == [[1, 2, 3, 0]] * 3
    assert VirtualWorld(3).run(sees) == [[1, 2, 3, 0]] * 3


def outlives(wire: Wire) -> int:
    """The maker is killed; who has the memory invites another one."""
    allow_going_on(wire.board, wire.size, name="t")
    wire.tolerate_deaths("gone")
    if wire.rank == 0:
        common = wire.make_common(NBYTES)
        common.memory[5] = 42
        wire.send(common.invitation, 1, "invitation").wait()
        wire.board.wait(["has it"])
        wire.crash()
    if wire.rank == 1:
        common = wire.find_common(_invited(wire, 0, 1))
        wire.board.set("has it", b"1")
        while 0 not in wire.dead:
            wire.clock.sleep(0.01)
        wire.send(common.invitation, 2, "invitation").wait()
        wire.board.wait(["wrote"])
        return int(common.memory[6])
    common = wire.find_common(_invited(wire, 1, 2))
    common.memory[6] = common.memory[5] + 1
    wire.board.set("wrote", b"1")
    return int(common.memory[5])


def test_it_outlives_its_maker() -> None:
    killed, second, third = outcomes_real(3, outlives)
    assert killed.exit_code == -9
    assert (second.result, third.result) == (43, 42)


def test_nothing_of_it_is_left() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    common = make_common(NBYTES)
    again = find_common(common.invitation)
    common.memory[0] = 7
    assert int(again.memory[0]) == 7
    part = again.memory[:10].view(torch.uint8)
    del common, again
    assert len(os.listdir("/proc/self/fd")) > before  # a part of it is held
    del part
    assert len(os.listdir("/proc/self/fd")) == before


def test_of_a_process_that_has_ended_nothing_is_found() -> None:
    with pytest.raises(ConfigurationError, match="memory of process 4194304 cannot be reached"):
        find_common(Message(header={"process": 4194304, "descriptor": 3, "bytes": 8}))
