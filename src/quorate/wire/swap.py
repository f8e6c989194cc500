"""A collective under way that is one exchange of messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import Mismatch, WireTimeout
from quorate.core.fields import Header
from quorate.wire.naming import named, namer, ranks_of_world

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The field that every message of a collective has in its header, beside those of its caller."""

    operation: str  # with shapes, where they must be equal

    def header(self, of_caller: Header | None = None) -> dict[str, Any]:
        return {"operation": self.operation, **(of_caller or {})}

    @classmethod
    def read(cls, header: Header) -> Envelope:
        return cls(header["operation"])


class Swap(Generic[T]):
    """A collective under way: the messages of all workers, which `combine` joins once all have arrived."""

    def __init__(
        self,
        wire: Wire,
        operation: str,
        others: Sequence[int],
        receives: Sequence[Work[tuple[int, Message]]],
        sends: Sequence[Work[None]],
        own: Message,
        combine: Callable[[list[Message]], T],
    ) -> None:
        self._wire, self._operation, self._others = wire, operation, others
        self._receives, self._sends = list(receives), list(sends)
        self._own, self._combine = own, combine
        self._is_combined = False
        self._result: T

    def done(self) -> bool:
        return self._is_combined or all(work.done() for work in (*self._receives, *self._sends))

    def wait(self, timeout: float | None = None) -> T:
        if not self._is_combined:
            clock = self._wire.clock
            limit = self._wire.timeout if timeout is None else timeout
            deadline = clock.now() + limit
            try:
                messages = [work.wait(max(0.0, deadline - clock.now()))[1] for work in self._receives]
                for send in self._sends:
                    send.wait(max(0.0, deadline - clock.now()))
            except WireTimeout:
                raise self.too_late(limit) from None
            self._result = self._combine(self._compared(messages))
            self._is_combined = True
            self._receives, self._sends = [], []
        return self._result

    def too_late(self, seconds: float) -> WireTimeout:
        """Return the error of a wait of `seconds` that was too short."""
        late = [peer for peer, work in zip(self._others, self._receives, strict=True) if not work.done()]
        late = late or [peer for peer, work in zip(self._others, self._sends, strict=False) if not work.done()]
        board, (rank, *late) = self._wire.board, ranks_of_world(self._wire, [self._wire.rank, *late])
        return WireTimeout(
            f"{named(board, [rank])} waited {seconds:g} s for {named(board, late)} in {self._operation}", late
        )

    def _compared(self, messages: Sequence[Message]) -> list[Message]:
        """Return all messages by rank. Raises `Mismatch` where workers called different operations."""
        arrived = [self._own] * self._wire.size
        for peer, message in zip(self._others, messages, strict=True):
            theirs = Envelope.read(message.header).operation
            if theirs != self._operation:
                rank, other = ranks_of_world(self._wire, [self._wire.rank, peer])
                raise Mismatch.between(rank, self._operation, other, theirs, namer(self._wire.board))
            arrived[peer] = message
        return arrived
