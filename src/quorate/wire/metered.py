"""`Wrapped`: a wire around a wire; and `Metered`, which counts the bytes of a worker by the formulas of `wire.cut`."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from quorate.core.contracts import Common, Message, Wire, Work, Write
from quorate.core.members import Members
from quorate.wire.cut import all_reduce_bytes, piece_bytes
from quorate.wire.exchange import pieces_of
from quorate.wire.work import Together

T = TypeVar("T")


class Wrapped(Wire):
    """Passes every call on to `inner`, through `_call`. Its channels, groups and tasks are wrapped, too."""

    def __init__(self, inner: Wire) -> None:
        self.inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.board, self.clock, self.timeout, self.name = inner.board, inner.clock, inner.timeout, inner.name

    @abstractmethod
    def _again(self, inner: Wire) -> Wire:
        """Return the same wrapper, with the same memory, around another wire of this worker."""

    @abstractmethod
    def _call(self, operation: str, launch: Callable[[], Work[T]], payload: Any, peer: int | None) -> Work[T]:
        """Call `launch`, with the effect of this wrapper.

        `payload` is the caller's argument (a tensor, tensors, a message or None); `peer` is the root of a rooted
        collective, the other side of a message, or None.
        """

    @property
    def members(self) -> Members:
        return self.inner.members

    @property
    def max_size(self) -> int:
        return self.inner.max_size

    def host_of(self, rank: int) -> int:
        return self.inner.host_of(rank)

    def enter(self) -> None:
        self.inner.enter()

    def tolerate_deaths(self, tag: str) -> None:
        self.inner.tolerate_deaths(tag)

    def channel(self, name: str) -> Wire:
        return self._again(self.inner.channel(name))

    def use_device(self, device: torch.device) -> None:
        self.inner.use_device(device)

    def connect(self, device: torch.device) -> None:
        self.inner.connect(device)

    def group(self, members: Sequence[int]) -> Wire:
        return self._again(self.inner.group(members))

    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        return self._call("all_reduce", lambda: self.inner.all_reduce(x), x, None)

    def all_reduce_narrow(self, x: Tensor) -> Work[Tensor]:
        return self._call("all_reduce", lambda: self.inner.all_reduce_narrow(x), x, None)

    def reduce_scatter(self, x: Tensor) -> Work[Tensor]:
        return self._call("reduce_scatter", lambda: self.inner.reduce_scatter(x), x, None)

    def all_gather(self, x: Tensor, *, shared: bool = False) -> Work[list[Tensor]]:
        return self._call("all_gather", lambda: self.inner.all_gather(x, shared=shared), x, None)

    def all_gather_into(self, x: Tensor, write: Write) -> Work[Tensor]:
        piece = pieces_of(x, self.size)[self.rank]
        return self._call("all_gather", lambda: self.inner.all_gather_into(x, write), piece, None)

    def all_to_all(
        self, pieces: Sequence[Tensor], *, shared: bool = False, shapes: Sequence[Sequence[int]] | None = None
    ) -> Work[list[Tensor]]:
        launch = lambda: self.inner.all_to_all(pieces, shared=shared, shapes=shapes)  # noqa: E731
        return self._call("all_to_all", launch, pieces, None)

    def all_to_all_single(self, x: Tensor) -> Work[list[Tensor]]:
        return self._call("all_to_all", lambda: self.inner.all_to_all_single(x), pieces_of(x, self.size), None)

    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        return self._call("broadcast", lambda: self.inner.broadcast(x, root), x, root)

    def reduce(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        return self._call("reduce", lambda: self.inner.reduce(x, root), x, root)

    def gather(self, x: Tensor, root: int = 0) -> Work[list[Tensor] | None]:
        return self._call("gather", lambda: self.inner.gather(x, root), x, root)

    def scatter(self, pieces: Sequence[Tensor] | None, root: int = 0) -> Work[Tensor]:
        return self._call("scatter", lambda: self.inner.scatter(pieces, root), pieces, root)

    def tell_all(self, operation: str, value: Any) -> Work[list[Any]]:
        return self._call("barrier", lambda: self.inner.tell_all(operation, value), None, None)

    def barrier(self) -> Work[None]:
        return self._call("barrier", self.inner.barrier, None, None)

    def send(self, message: Message, to: int, tag: str) -> Work[None]:
        return self._call("send", lambda: self.inner.send(message, to, tag), message, to)

    def receive(self, source: int | None, tag: str, needs: Sequence[int] = ()) -> Work[tuple[int, Message]]:
        return self._call("receive", lambda: self.inner.receive(source, tag, needs), None, source)

    def sums_on(self, device: torch.device) -> bool:
        return self.inner.sums_on(device)

    def on_host(self, x: Tensor, into: Tensor | None = None) -> Work[Tensor]:
        return self.inner.on_host(x, into)

    def tell_of_host(self, device: torch.device) -> None:
        self.inner.tell_of_host(device)

    def carries(self, x: Tensor) -> bool:
        return self.inner.carries(x)

    def exchange(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], tag: str
    ) -> Work[list[Tensor]]:
        launch = lambda: self.inner.exchange(sends, receives, tag)  # noqa: E731
        return self._call("exchange", launch, (sends, receives), None)

    def empty(self, numel: int, dtype: torch.dtype, *, patience: float = 0.0) -> Tensor:
        return self.inner.empty(numel, dtype, patience=patience)

    def trim(self) -> None:
        self.inner.trim()

    def lend(self, x: Tensor) -> dict[str, Any] | None:
        return self.inner.lend(x)

    def borrow(self, loan: Mapping[str, Any], *, copy_of: Tensor | None = None) -> Tensor:
        return self.inner.borrow(loan, copy_of=copy_of)

    def make_common(self, nbytes: int) -> Common:
        return self.inner.make_common(nbytes)

    def find_common(self, invitation: Message) -> Common:
        return self.inner.find_common(invitation)

    def spawn(self, task: Callable[[Wire], None], name: str) -> Work[None]:
        return self.inner.spawn(lambda wire: task(self._again(wire)), name)

    def crash(self) -> None:
        self.inner.crash()

    def close(self) -> None:
        self.inner.close()


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
