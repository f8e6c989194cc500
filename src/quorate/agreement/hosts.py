"""On which machines the workers are."""

from __future__ import annotations

import socket

import torch

from quorate.core.contracts import Wire


def hosts_of(wire: Wire) -> tuple[str, ...]:
    """The name of every worker's machine, by rank; every worker of the start calls this at the same place."""
    mine = socket.gethostname() or "?"
    if wire.is_newcomer:  # only a run on one host is joined
        return (mine,) * wire.max_size
    found = wire.all_gather(torch.frombuffer(bytearray(mine.encode()), dtype=torch.uint8)).wait()
    names = [bytes(name.tolist()).decode() for name in found]
    return (*names, *names[:1] * (wire.max_size - wire.size))
