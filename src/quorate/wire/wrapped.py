"""A wire around a wire: the common part of `metered`, `delayed` and `faulty`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from quorate.core.contracts import Common, Message, Wire, Work, Write
from quorate.core.members import Members
from quorate.wire.exchange import pieces_of

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
