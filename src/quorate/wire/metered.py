"""`Metered`: counts what a worker sends and receives, by the formulas of `wire.cost`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.wire.cost import all_reduce_bytes, piece_bytes
from quorate.wire.work import Together
from quorate.wire.wrapped import Wrapped

T = TypeVar("T")


@dataclass
class Meter:
    """Payload bytes and messages, in total and by operation (`bytes_out["all_reduce"]`).

    Headers and the backends' own framing do not count, nor what a worker sends to itself. Over all
    workers, bytes out equal bytes in.
    """

    bytes_out: Counter[str] = field(default_factory=Counter)
    bytes_in: Counter[str] = field(default_factory=Counter)
    messages_out: Counter[str] = field(default_factory=Counter)
    messages_in: Counter[str] = field(default_factory=Counter)

    @property
    def total_out(self) -> int:
        """Bytes of all operations."""
        return sum(self.bytes_out.values())

    def sent(self, operation: str, nbytes: int, messages: int) -> None:
        """Count a message, or several, that this worker sends."""
        self.bytes_out[operation] += nbytes
        self.messages_out[operation] += messages

    def received(self, operation: str, nbytes: int, messages: int) -> None:
        """Count what has come."""
        self.bytes_in[operation] += nbytes
        self.messages_in[operation] += messages


class Metered(Wrapped):
    """Counts into `meter`. What arrives in unknown sizes is counted when it is waited for."""

    def __init__(self, inner: Wire, meter: Meter | None = None) -> None:
        super().__init__(inner)
        self.meter = Meter() if meter is None else meter

    def _again(self, inner: Wire) -> Wire:
        return Metered(inner, self.meter)

    def _call(self, operation: str, launch: Callable[[], Work[T]], given: Any, peer: int | None) -> Work[T]:
        work = launch()
        others, is_root = self.size - 1, peer == self.rank
        meter, nbytes = self.meter, _nbytes(given)
        if operation == "all_reduce":
            both = all_reduce_bytes(nbytes, self.size)
            meter.sent(operation, both, 2 * others)
            meter.received(operation, both, 2 * others)
        elif operation == "reduce_scatter":
            mine = piece_bytes(given.numel(), given.element_size(), self.rank, self.size)
            meter.sent(operation, nbytes - mine, others)
            meter.received(operation, mine * others, others)
        elif operation in ("all_gather", "gather"):
            if operation == "all_gather" or not is_root:
                meter.sent(operation, nbytes * (others if operation == "all_gather" else 1), max(1, others))
            return self._count_result(operation, work, others, excluding=nbytes)
        elif operation in ("all_to_all", "scatter"):
            if given is not None:
                meter.sent(operation, nbytes - _nbytes(given[self.rank]), others)
            if operation == "all_to_all" or not is_root:
                own = _nbytes(given[self.rank]) if operation == "all_to_all" else 0
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
        elif operation == "barrier":
            meter.sent(operation, 0, others)
            meter.received(operation, 0, others)
        elif operation == "send" and not is_root:
            meter.sent(operation, nbytes, 1)
        elif operation == "receive":
            return self._count_message(work)
        return work

    def _count_message(self, work: Work[T]) -> Work[T]:
        def count(results: list[T]) -> T:
            came: Any = results[0]
            if came[0] != self.rank:
                self.meter.received("receive", _nbytes(came[1]), 1)
            return results[0]

        return Together([work], count, self.clock)

    def _count_result(self, operation: str, work: Work[T], messages: int, *, excluding: int) -> Work[T]:
        def count(results: list[T]) -> T:
            if results[0] is not None:
                self.meter.received(operation, _nbytes(results[0]) - excluding, messages)
            return results[0]

        return Together([work], count, self.clock)


def _nbytes(given: Any) -> int:
    """Bytes in a tensor, a message, or a sequence or pair that holds some."""
    if isinstance(given, Tensor):
        return given.numel() * given.element_size()
    if isinstance(given, Message):
        return sum(map(_nbytes, given.tensors))
    if isinstance(given, Sequence) and not isinstance(given, str):
        return sum(map(_nbytes, given))
    return 0
