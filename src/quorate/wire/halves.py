"""Sums of large tensors by messages, in two exchanges: pieces to their owners, and the owners' sums to all.

Workers may wait for what they have begun in any order, or for something else first. So the second exchange is not begun
by who waits, but by a task, which is there while sums are under way: else two workers that wait for different sums
would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import WireTimeout
from quorate.wire.swap import Swap

_IDLE_SECONDS = 60.0


class SumInHalves:
    """One sum under way, of which the `first` exchange (a `Swap`) gives this worker's piece, and `combine` makes all
    pieces one. Under `tag` nothing else is sent."""

    def __init__(
        self, wire: Wire, first: Work[Tensor], operation: str, tag: str, combine: Callable[[list[Message]], Tensor]
    ) -> None:
        assert isinstance(first, Swap)
        self._wire, self._first, self._operation, self._tag, self._combine = wire, first, operation, tag, combine
        self._others = [peer for peer in range(wire.size) if peer != wire.rank]
        self._mine = wire.receive(wire.rank, tag, self._others)
        self._receives = [wire.receive(peer, tag, self._others) for peer in self._others]
        self._second: Swap[Tensor] | None = None
        self._error: Exception | None = None

    def pass_on(self) -> None:
        """For the task: form this worker's piece when the others' are here, however long that takes. How long is too
        long is for who waits to say, and an error is for it to raise."""
        try:
            mine = self._patiently()
            if mine.device.type == "cpu":  # so that it is not copied for each of them
                mine = self._wire.empty(mine.numel(), mine.dtype).copy_(mine)
            message = Message((mine,), {"operation": self._operation}, shared=True)
            for peer in (*self._others, self._wire.rank):
                self._wire.send(message, peer, self._tag)
        except Exception as error:
            self._error = error
            self._wire.send(Message(), self._wire.rank, self._tag)

    def _patiently(self) -> Tensor:
        while True:
            try:
                found: Tensor = self._first.wait(_IDLE_SECONDS)
            except WireTimeout:
                continue
            return found

    def done(self) -> bool:
        if self._second is not None:
            return self._second.done()
        return self._mine.done() and (self._error is not None or all(work.done() for work in self._receives))

    def wait(self, timeout: float | None = None) -> Tensor:
        clock, limit = self._wire.clock, self._wire.timeout if timeout is None else timeout
        deadline = clock.now() + limit
        if self._second is None:
            try:
                _, own = self._mine.wait(limit)
            except WireTimeout:
                raise self._first.too_late(limit) from None
            if self._error is not None:
                raise self._error
            self._second = Swap(self._wire, self._operation, self._others, self._receives, [], own, self._combine)
        return self._second.wait(max(0.0, deadline - clock.now()))
