"""Works of a real wire: each waits in the endpoint's loop, which notices failures and time-outs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from quorate.core.contracts import Clock, Message, Wire, Work
from quorate.core.device_copies import HostCopy, aside, lies_in
from quorate.core.errors import PeerFailed, QuorateError, WireTimeout
from quorate.wire.naming import named
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.gpus import on_gpu
from quorate.wire.real.host_sums import HostSums
from quorate.wire.real.links import Outgoing
from quorate.wire.real.order import Order
from quorate.wire.real.shelf import Sum
from quorate.wire.real.sums import Sums

T = TypeVar("T")


class GroupWork:
    """A collective of a process group.

    `launch` begins it, after all of `launches`, the earlier ones of the same channel, and after the `description` that
    all workers exchange of a new one. It is launched by its call, or by a later call, `done` or `wait` on the channel.
    """

    def __init__(
        self,
        order: Order,
        launches: deque[GroupWork],
        launch: Callable[[], Any],
        description: Work[None] | None,
        operation: str,
        count: int,
        x: Tensor,
        moved: Tensor,
    ) -> None:
        self._order, self._launches, self._operation, self._count = order, launches, operation, count
        self._launch: Callable[[], Any] | None = launch
        self._description, self._x, self._moved = description, x, moved
        self._work: Any = None
        self._copy: HostCopy | None = None
        """A copy of a part of the result, made behind this collective; it shows that it is complete."""
        self._is_over = False
        launches.append(self)
        self._launch_described()

    def _launch_described(self) -> None:
        """Launch the first collectives of the channel, as far as all workers have described them; never waits."""
        while self._launches:
            first = self._launches[0]
            if first._description is not None and not first._description.done():
                return
            try:
                first._begin(0.0)
            except QuorateError:
                return  # the wait for it raises the same

    def _begin(self, timeout: float | None) -> None:
        """Begin this collective, the first of those not launched."""
        if self._description is not None:
            with self._order.waiting(self._count, self._operation, "by messages"):
                self._description.wait(timeout)
        assert self._launch is not None
        self._work, self._launch = self._launch(), None
        self._launches.popleft()

    def done(self) -> bool:
        endpoint = self._order.endpoint
        self._launch_described()
        is_completed = self._work is not None and bool(self._work.is_completed())
        return self._is_over or is_completed or endpoint.is_in_vain(endpoint.others)

    def _ready(self, seconds: float) -> bool:
        if self._moved.device.type != "cpu":
            asks = self._work.is_completed if self._copy is None else self._copy.is_there
            return is_over(asks, self._order.endpoint.clock, seconds) and self._has_ended()
        try:
            self._work.wait(timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError:
            if not self._work.is_completed():
                return False  # only this slice of the wait is over
            self._end()
        return True

    def _end(self) -> None:
        """Check a completed work: raise its error, if there is one."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._order.endpoint.connection_lost(self._operation, str(error).splitlines()[0]) from error

    def _has_ended(self) -> bool:
        self._end()
        return True

    def read_behind(self, x: Tensor) -> HostCopy | None:
        """See `wire.work.read_behind`."""
        self._launch_described()
        if self._work is None or self._moved.device.type == "cpu" or not lies_in(x, self._moved):
            return None
        with aside(self._moved.device):
            self._end()
            self._copy = HostCopy(x)
        return self._copy

    def follow(self, timeout: float | None = None) -> Tensor:
        """See `wire.work.followed`."""
        if self._is_over or self._moved.device.type == "cpu":
            return self.wait(timeout)
        while self._launch is not None:
            self._launches[0]._begin(None)
        self._end()
        return self._moved_back()

    def wait(self, timeout: float | None = None) -> Tensor:
        if self._is_over:
            return self._x
        order, count = self._order, self._count
        while self._launch is not None:
            self._launches[0]._begin(timeout)
        with order.waiting(count, self._operation, "by backend"):
            order.endpoint.until(
                self._ready,
                waits_for=self._operation,
                needed=order.endpoint.others,
                timeout=timeout,
                missing=lambda: order.missing(count),
            )
        return self._moved_back()

    def _moved_back(self) -> Tensor:
        self._is_over, self._work = True, None
        if self._moved is not self._x:
            self._x.detach().copy_(self._moved)
        return self._x


class CopyWork:
    """Numbers of a device on their way to the host, behind all that the device was given before.

    Collectives may be among it. So a wait for the copy ends where a worker has died, or is over the limit.
    """

    def __init__(self, endpoint: Endpoint, x: Tensor, into: Tensor | None = None) -> None:
        self._endpoint, self._copy = endpoint, HostCopy(x, into)

    def done(self) -> bool:
        return self._copy.is_there() or self._endpoint.is_in_vain(self._endpoint.others)

    def wait(self, timeout: float | None = None) -> Tensor:
        if not self._copy.is_there():
            self._endpoint.until(
                lambda seconds: is_over(self._copy.is_there, self._endpoint.clock, seconds),
                waits_for="numbers of a GPU",
                needed=self._endpoint.others,
                timeout=timeout,
            )
        return self._copy.there


def is_over(asks: Callable[[], bool], clock: Clock, seconds: float) -> bool:
    """Ask until the answer is yes, for at most `seconds`; return the answer."""
    deadline = clock.now() + seconds
    while not asks():
        if clock.now() >= deadline:
            return False
        clock.sleep(0.0001)
    return True


class SumWork:
    """A sum `begun` in shared memory; the thread that waits copies the result to `x`."""

    def __init__(self, order: Order, sums: Sums | HostSums, operation: str, count: int, x: Tensor, begun: Sum) -> None:
        self._order, self._sums, self._operation, self._count = order, sums, operation, count
        self._x, self.begun = x, begun
        self._is_taken = False

    def done(self) -> bool:
        endpoint = self._order.endpoint
        return self._sums.is_done(self.begun) or endpoint.is_in_vain(endpoint.others)

    def _ready(self, seconds: float) -> bool:
        if self._sums.wait(self.begun, seconds):
            return True
        endpoint = self._order.endpoint
        lost = set(endpoint.mailbox.lost) if endpoint.mailbox is not None else set()
        lost &= set(self._missing()) if lost else set()
        if lost:
            error = endpoint.connection_lost(self._operation, "closed by the other side")
            if isinstance(error, PeerFailed) and not error.ranks:
                dead = named(endpoint.board, [min(lost)])
                who = f"{dead} ended while {endpoint.named} waited for it in {self._operation}"
                raise PeerFailed(who, sorted(lost))
            raise error
        return False

    def _missing(self) -> list[int]:
        return self._sums.missing(self.begun)

    def _late(self) -> list[int]:
        """Return the ranks that may be late, only those that have not written that they wait too, if any."""
        missing, silent = self._missing(), self._order.missing(self._count)
        return [rank for rank in missing if rank in silent] or missing or silent

    @contextmanager
    def _stops_where_it_fails(self) -> Iterator[None]:
        try:
            yield
        except WireTimeout:
            raise  # another wait may follow
        except QuorateError:
            self._sums.stop()
            raise

    def wait(self, timeout: float | None = None) -> Tensor:
        if not self._is_taken:
            order, count = self._order, self._count
            if not self._sums.wait(self.begun, 0.0):
                with order.waiting(count, self._operation, "as a sum"), self._stops_where_it_fails():
                    order.endpoint.until(
                        self._ready,
                        waits_for=self._operation,
                        needed=order.endpoint.others,
                        timeout=timeout,
                        missing=self._late,
                    )
            self._is_taken = True
            if self.begun.x is not self._x:
                self._x.detach().copy_(self.begun.x)
        return self._x


class LookWork:
    """The pieces of all workers' tensors, without a copy."""

    def __init__(self, work: SumWork, dtype: torch.dtype) -> None:
        self._work, self._dtype = work, dtype

    def done(self) -> bool:
        return self._work.done()

    def wait(self, timeout: float | None = None) -> list[Tensor]:
        self._work.wait(timeout)
        return [torch.from_numpy(x).view(self._dtype) for x in self._work.begun.pieces]


class MessagesWork(Generic[T]):
    """A collective by messages under way."""

    def __init__(self, order: Order, work: Work[T], operation: str, count: int) -> None:
        self._order, self._work, self._operation, self._count = order, work, operation, count

    def done(self) -> bool:
        return self._work.done()

    def wait(self, timeout: float | None = None) -> T:
        with self._order.waiting(self._count, self._operation, "by messages"):
            return self._work.wait(timeout)


class SendWork:
    """A sent message."""

    def __init__(self, endpoint: Endpoint, outgoing: Outgoing, to: int) -> None:
        self._endpoint, self._outgoing, self._to = endpoint, outgoing, to

    def done(self) -> bool:
        return self._outgoing.sent.is_open

    def wait(self, timeout: float | None = None) -> None:
        endpoint = self._endpoint
        operation = f"send to rank {self._to}"
        endpoint.until(self._outgoing.sent.wait, waits_for=operation, needed=[self._to], timeout=timeout)
        if self._outgoing.lost:
            raise endpoint.connection_lost(operation, self._outgoing.why)


class ReceiveWork:
    """A posted receive."""

    def __init__(self, endpoint: Endpoint, source: int | None, tag: str, needs: Sequence[int]) -> None:
        self._endpoint, self._source = endpoint, source
        self._sources = [source] if source is not None else []
        self._needs = [*self._sources, *needs]
        self._waiting = endpoint.inbox.ask(source, tag)

    def done(self) -> bool:
        return self._waiting.filled.is_open or self._endpoint.is_in_vain(self._needs)

    def wait(self, timeout: float | None = None) -> tuple[int, Message]:
        if self._waiting.filled.is_open:
            self._endpoint.check()
        else:
            self._endpoint.until(
                self._waiting.filled.wait,
                waits_for="receive from anyone" if self._source is None else f"receive from rank {self._source}",
                needed=self._sources,
                also=self._needs,
                timeout=timeout,
            )
        assert self._waiting.result is not None
        return self._waiting.result


class TaskWork:
    """A task in a thread of its own; a wait for it raises its error."""

    def __init__(self, endpoint: Endpoint, task: Callable[[Wire], None], channel: Wire) -> None:
        self._endpoint, self._name = endpoint, channel.name
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(task, channel), name=channel.name, daemon=True)
        self._thread.start()

    def _run(self, task: Callable[[Wire], None], channel: Wire) -> None:
        try:
            with on_gpu(self._endpoint.gpu):  # a new thread's current GPU is the first
                task(channel)
        except BaseException as error:
            self._error = error
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        self._endpoint.until(self._ended.wait, waits_for=f"the task {self._name}", needed=[], timeout=timeout)
        if self._error is not None:
            raise self._error
