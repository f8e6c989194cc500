"""Whether the workers of a replica gather the blocks of a model in one order, where torch's own collectives carry them.

NCCL moves numbers without a name: workers that use other blocks, of equal sizes, would calculate with each other's
numbers. So each worker notes the blocks that it has gathered and reduced, and sends the list to its neighbour at the
end of a step, over the connection between the hosts. Nobody waits for it: it is compared when it has come, at the end
of one of the next two steps. Unequally many collectives wait for each other inside NCCL, up to its own limit.

Cost: a header to one neighbour in each step, and the list where it differs from the last one.
"""

from __future__ import annotations

from collections import deque
from itertools import zip_longest
from typing import Any

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import Mismatch
from quorate.sharding.collectives import REMEDY
from quorate.sharding.groups import groups_of

_LAG = 2
"""Steps after which the neighbour's list is waited for."""


class Walk:
    """The collectives of one model's blocks on this worker, and on its neighbour."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._step = wire, 0
        self.calls: list[str] = []
        """The collectives of this step."""
        self._sent: tuple[str, ...] | None = None
        self._received: list[str] = []
        self._pending: deque[tuple[int, tuple[str, ...], Work[tuple[int, Message]]]] = deque()

    def step_ended(self) -> None:
        """Send the list of this step, and compare those that have come. Raises `Mismatch` where they differ."""
        wire, own = self._wire, tuple(self.calls)
        self.calls.clear()
        self._step += 1
        tag, following, previous = f"walk/{self._step}", (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
        wire.send(Message((), {} if own == self._sent else {"calls": list(own)}), following, tag)
        self._sent = own
        self._pending.append((self._step, own, wire.receive(previous, tag, [previous])))
        while self._pending and (len(self._pending) > _LAG or self._pending[0][2].done()):
            step, calls, work = self._pending.popleft()
            self._received = list(work.wait()[1].header.get("calls", self._received))
            self._compare(step, calls, previous)

    def _compare(self, step: int, own: tuple[str, ...], previous: int) -> None:
        for number, (here, there) in enumerate(zip_longest(own, self._received, fillvalue="nothing more"), 1):
            if here != there:
                raise Mismatch(
                    f"in step {step} of a model in shards, collective {number}, worker {self._wire.rank} of the "
                    f"replica called {here}, and worker {previous} called {there}{REMEDY}"
                )


class _Noted:
    """A collective of torch's, noted by the name of its block."""

    def __init__(self, inner: Any, walk: Walk, call: str) -> None:
        self._inner, self._walk, self._call, self.allocate = inner, walk, call, inner.allocate

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._walk.calls.append(self._call)
        return self._inner(*args, **kwargs)


def note_calls(module: Any, walk: Walk, name: str) -> None:
    """Let the groups of `module`, which is called `name`, note their collectives in `walk`."""
    for group in groups_of(module):
        group._all_gather_comm = _Noted(group._all_gather_comm, walk, f"all_gather of {name}")
        group._reduce_scatter_comm = _Noted(group._reduce_scatter_comm, walk, f"reduce_scatter of {name}")
