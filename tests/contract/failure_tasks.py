"""Workers that die, leave, disagree or keep others waiting; each task returns what this worker saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from quorate.core.contracts import Wire, Work
from quorate.core.errors import Mismatch, PeerFailed, WireTimeout

WAITS: dict[str, Callable[[Wire, int], Any]] = {
    "all_reduce": lambda wire, dead: wire.all_reduce(torch.ones(3)).wait(),
    "barrier": lambda wire, dead: wire.barrier().wait(),
    "all_gather": lambda wire, dead: wire.all_gather(torch.ones(wire.rank)).wait(),
    "receive": lambda wire, dead: wire.receive(dead, "never").wait(),
    "receive from anyone": lambda wire, dead: wire.receive(None, "never").wait(),
    "board": lambda wire, dead: wire.board.wait(["never"]),
    "group": lambda wire, dead: wire.group(range(wire.size)).all_reduce(torch.ones(2)).wait(),
    "large sum of a group": lambda wire, dead: wire.group(range(wire.size)).all_reduce(torch.ones(1 << 15)).wait(),
    "channel": lambda wire, dead: wire.channel("c").all_reduce(torch.ones(2)).wait(),
    "spawned": lambda wire, dead: wire.spawn(lambda own: own.barrier().wait(), "s").wait(),
}


@dataclass(frozen=True)
class Seen:
    """An error as a worker saw it."""

    kind: str
    ranks: tuple[int, ...]
    message: str
    again: str
    """What the next wait raised."""
    seconds: float


def seen(wire: Wire, wait: Callable[[], Any], again: Callable[[], Any]) -> Seen | None:
    begin = wire.clock.now()
    try:
        wait()
    except (PeerFailed, WireTimeout, Mismatch) as error:
        seconds = wire.clock.now() - begin
        second = ""
        try:
            again()
        except (PeerFailed, WireTimeout, Mismatch) as other:
            second = type(other).__name__
        return Seen(type(error).__name__, getattr(error, "ranks", ()), str(error), second, seconds)
    return None


def one_dies(dead: int, how: str, wait: str, wire: Wire) -> Seen | None:
    """Worker `dead` crashes, raises or exits after a first agreement; the others wait for it in vain."""
    wire.channel("c")
    wire.all_reduce(torch.ones(1)).wait()
    if wire.rank == dead:
        wire.clock.sleep(0.1)  # the others have what it sent
        if how == "crashes":
            wire.crash()
        if how == "raises":
            raise ZeroDivisionError("by hand")
        return None
    return seen(wire, lambda: WAITS[wait](wire, dead), lambda: wire.barrier().wait())


def work_that_is_done_outlives_a_death(wire: Wire) -> Seen | list[int]:
    """What was done before rank 0 crashed can still be had after it was noticed."""
    gathered = wire.all_gather(torch.tensor([wire.rank]))
    gathered.wait()
    note = wire.receive(0, "note")
    if wire.rank == 0:
        sends = [wire.send(_note(), peer, "note") for peer in range(1, wire.size)]
        for send in sends:
            send.wait()
        wire.clock.sleep(0.1)
        wire.crash()
    note.wait()
    error = seen(wire, lambda: wire.barrier().wait(), lambda: None)
    assert error is not None
    assert error.kind == "PeerFailed"
    return [int(x) for x in gathered.wait()] + note.wait()[1].header["numbers"]


def _note() -> Any:
    from quorate.core.contracts import Message

    return Message((), {"numbers": [7]})


MISMATCHES: dict[str, Callable[[Wire, bool], Work[Any]]] = {
    "shape": lambda wire, odd: wire.all_reduce(torch.zeros(3 if odd else 4)),
    "dtype": lambda wire, odd: wire.all_reduce(torch.zeros(4, dtype=torch.int32 if odd else torch.float32)),
    "operation": lambda wire, odd: wire.barrier() if odd else wire.all_reduce(torch.zeros(4)),
    "root": lambda wire, odd: wire.broadcast(torch.zeros(4), 0 if odd else 1),
    "gathered dtype": lambda wire, odd: wire.all_gather(torch.zeros(4, dtype=torch.int64 if odd else torch.float64)),
}


def one_disagrees(how: str, wire: Wire) -> Seen | None:
    """The last worker calls something else than the others."""
    wire.all_reduce(torch.ones(1)).wait()
    is_odd = wire.rank == wire.size - 1
    return seen(wire, lambda: MISMATCHES[how](wire, is_odd).wait(), lambda: None)


def one_keeps_others_waiting(how: str, wire: Wire) -> Seen | None:
    """The last worker sleeps for longer than the others wait."""
    wire.barrier().wait()
    if wire.rank == wire.size - 1:
        wire.clock.sleep(1.2)
        return None
    if how == "receive":
        return seen(wire, lambda: wire.receive(wire.size - 1, "t").wait(timeout=0.3), lambda: None)
    return seen(wire, lambda: wire.barrier().wait(timeout=0.3), lambda: None)
