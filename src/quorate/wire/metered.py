"""`Metered`: counts what a worker sends and receives, by the formulas of `wire.cost`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.wire.cost import all_reduce_bytes, piece_bytes
from quorate.wire.work import Together
from quorate.wire.wrapped import Wrapped

T = TypeVar("T")
_NBYTES = attrgetter("nbytes")


@dataclass
class Meter:
    """Payload bytes and messages, in total and by operation (`bytes_out["all_reduce"]`).

    Headers, the backends' own framing and messages of a worker to itself do not count. Over all
    workers, bytes out equal bytes in.
    """

    bytes_out: Counter[str] = field(default_factory=Counter)
    bytes_in: Counter[str] = field(default_factory=Counter)
    messages_out: Counter[str] = field(default_factory=Counter)
    messages_in: Counter[str] = field(default_factory=Counter)

    @property
    def total_out(self) -> int:
        """Bytes sent by all operations."""
        return sum(self.bytes_out.values())

    def sent(self, operation: str, nbytes: int, messages: int) -> None:
        """Count a message, or several, that this worker sends."""
        self.bytes_out[operation] += nbytes
        self.messages_out[operation] += messages

    def received(self, operation: str, nbytes: int, messages: int) -> None:
        """Count received bytes and messages."""
        self.bytes_in[operation] += nbytes
        self.messages_in[operation] += messages


class Metered(Wrapped):
    """Counts into `meter`. Data of unknown size is counted by the wait for it."""

    def __init__(self, inner: Wire, meter: Meter | None = None) -> None:
        super().__init__(inner)
        self.meter = Meter() if meter is None else meter
        self._bytes_of_sums: dict[int, int] = {}
        """The bytes that an all-reduce sends, by those of its tensor."""

    def _again(self, inner: Wire) -> Wire:
        return Metered(inner, self.meter)

    def send(self, message: Message, to: int, tag: str) -> Work[None]:
        work = self.inner.send(message, to, tag)
        if to != self.rank:
            self.meter.sent("send", sum(map(_NBYTES, message.tensors)), 1)
        return work

    def receive(self, source: int | None, tag: str, needs: Sequence[int] = ()) -> Work[tuple[int, Message]]:
        work = self.inner.receive(source, tag, needs)
        return work if source == self.rank else _Receive(work, self.meter, self.rank)

    def _call(self, operation: str, launch: Callable[[], Work[T]], payload: Any, peer: int | None) -> Work[T]:
        work = launch()
        others, is_root = self.size - 1, peer == self.rank
        meter, nbytes = self.meter, _nbytes(payload)
        if operation == "all_reduce":
            both = self._bytes_of_sums.get(nbytes)
            if both is None:
                both = self._bytes_of_sums[nbytes] = all_reduce_bytes(nbytes, self.size)
            meter.sent(operation, both, 2 * others)
            meter.received(operation, both, 2 * others)
        elif operation == "reduce_scatter":
            piece = piece_bytes(payload.numel(), payload.element_size(), self.rank, self.size)
            meter.sent(operation, nbytes - piece, others)
            meter.received(operation, piece * others, others)
        elif operation in ("all_gather", "gather"):
            if operation == "all_gather" or not is_root:
                meter.sent(operation, nbytes * (others if operation == "all_gather" else 1), max(1, others))
            return self._count_result(operation, work, others, excluding=nbytes)
        elif operation in ("all_to_all", "scatter"):
            if payload is not None:
                meter.sent(operation, nbytes - _nbytes(payload[self.rank]), others)
            if operation == "all_to_all" or not is_root:
                own = _nbytes(payload[self.rank]) if operation == "all_to_all" else 0
                return self._count_result(operation, work, others if operation == "all_to_all" else 1, excluding=own)
        elif operation == "broadcast":
            if is_root:
                meter.sent(operation, nbytes * others, others)
            else:
                meter.received(operation, nbytes, 1)
        elif operation == "reduce":
            if is_root:
                meter.received(operation, nbytes * others, others)
            else:
                meter.sent(operation, nbytes, 1)
        elif operation == "exchange":
            sends, receives = payload
            meter.sent(operation, sum(x.nbytes for _, x in sends), len(sends))
            meter.received(operation, sum(x.nbytes for _, x in receives), len(receives))
        elif operation == "barrier":
            meter.sent(operation, 0, others)
            meter.received(operation, 0, others)
        return work

    def _count_result(self, operation: str, work: Work[T], messages: int, *, excluding: int) -> Work[T]:
        def count(results: list[T]) -> T:
            if results[0] is not None:
                self.meter.received(operation, _nbytes(results[0]) - excluding, messages)
            return results[0]

        return Together([work], count, self.clock)


class _Receive:
    """Counts a message when it is first waited for."""

    __slots__ = ("_meter", "_rank", "_work", "done")

    def __init__(self, work: Work[tuple[int, Message]], meter: Meter, rank: int) -> None:
        self._work, self._rank = work, rank
        self._meter: Meter | None = meter
        self.done = work.done

    def wait(self, timeout: float | None = None) -> tuple[int, Message]:
        source, message = self._work.wait(timeout)
        if self._meter is not None and source != self._rank:
            self._meter.received("receive", sum(map(_NBYTES, message.tensors)), 1)
        self._meter = None
        return source, message


def _nbytes(payload: Any) -> int:
    """Return the bytes of a tensor, a message, or a sequence of them."""
    if isinstance(payload, Tensor):
        return payload.numel() * payload.element_size()
    if isinstance(payload, Sequence) and not isinstance(payload, str):
        return sum(map(_nbytes, payload))
    return 0
