"""`RealWire`: sums and broadcasts over a c10d process group, everything ragged and all messages over sockets."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.wire.exchange import Exchange, describe
from quorate.wire.group import GroupWire
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.mailbox import Outgoing
from quorate.wire.real.order import Order
from quorate.wire.store import BoardStore
from quorate.wire.work import Done

T = TypeVar("T")
_WIDENED = (torch.bfloat16, torch.float16)


class RealWire(Exchange):
    """One process's wire on one channel; its process groups are made when a collective first needs them."""

    def __init__(self, endpoint: Endpoint, name: str = "main") -> None:
        super().__init__()
        self.endpoint, self.name = endpoint, name
        self.rank, self.size, self.generation = endpoint.rank, endpoint.size, endpoint.generation
        self.board, self.clock, self.timeout = endpoint.board, endpoint.clock, endpoint.timeout
        self._order = Order(endpoint, name)
        self._groups: dict[str, Any] = {}
        self._channels: dict[str, RealWire] = {}
        self._busy = threading.Lock()

    def channel(self, name: str) -> Wire:
        if name not in self._channels:
            self._channels[name] = RealWire(self.endpoint, f"{self.name}/{name}")
        return self._channels[name]

    def group(self, members: Sequence[int]) -> Wire:
        return GroupWire(self, members)

    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        if self.size == 1 or x.numel() == 0:
            return Done(x)
        wide = x.float() if x.dtype in _WIDENED else x.contiguous()
        return self._launch(f"all_reduce {describe(x)}", lambda group: group.allreduce([wide]), x, wide)

    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        if self.size == 1 or x.numel() == 0:
            return Done(x)
        whole = x.contiguous()
        options = dist.BroadcastOptions()
        options.rootRank = root
        return self._launch(
            f"broadcast from {root} {describe(x)}", lambda group: group.broadcast([whole], options), x, whole
        )

    def reduce(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        if self.size == 1 or x.numel() == 0:
            return Done(x)
        wide = x.float() if x.dtype in _WIDENED else x.contiguous()
        options = dist.ReduceOptions()
        options.rootRank = root
        return self._launch(f"reduce to {root} {describe(x)}", lambda group: group.reduce([wide], options), x, wide)

    def _launch(self, operation: str, start: Callable[[Any], Any], x: Tensor, moved: Tensor) -> Work[Tensor]:
        if not self._busy.acquire(blocking=False):
            raise AssertionError(f"two threads use the wire {self.name} at once; give each a channel of its own")
        try:
            self._order.check(operation)
            work = start(self._group(x.device))
        finally:
            self._busy.release()
        return _GroupWork(self, work, operation, self._order.count, x, moved)

    def _swap(self, operation: str, outgoing: Sequence[Message], combine: Callable[[list[Message]], T]) -> Work[T]:
        self._order.check(operation)
        return super()._swap(operation, outgoing, combine)

    def _group(self, device: torch.device) -> Any:
        group = self._groups.get(device.type)
        if group is None:
            store = BoardStore(self.board, f"generation/{self.generation}/group/{self.name}/{device.type}")
            make = _nccl if device.type == "cuda" else _gloo
            group = self._groups[device.type] = make(store, self.endpoint)
        return group

    def send(self, message: Message, to: int, tag: str) -> Work[None]:
        if to == self.rank:
            self._inbox_put(Message(tuple(x.detach().clone() for x in message.tensors), dict(message.header)), tag)
            return Done(None)
        mailbox = self.endpoint.mailbox
        assert mailbox is not None
        try:
            return _SendWork(self, mailbox.send(message, to, self._tag(tag)), to)
        except ConnectionError as error:
            raise self.endpoint.connection_lost(f"send to rank {to}", str(error)) from error

    def _inbox_put(self, message: Message, tag: str) -> None:
        self.endpoint.inbox.put(self.rank, self._tag(tag), message)

    def receive(self, source: int | None, tag: str) -> Work[tuple[int, Message]]:
        return _ReceiveWork(self, source, self._tag(tag))

    def _tag(self, tag: str) -> str:
        return f"{self.name}:{tag}"

    def spawn(self, task: Callable[[Wire], None], name: str) -> Work[None]:
        return _TaskWork(self, task, self.channel(name))

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._groups.clear()
        if self.name == "main":
            self.endpoint.close()


def _gloo(store: dist.Store, endpoint: Endpoint) -> Any:
    make: Any = dist.ProcessGroupGloo
    options = make._Options()
    options._timeout = timedelta(seconds=endpoint.timeout)
    options._devices = [make.create_device(hostname="127.0.0.1") if endpoint.is_local else make.create_default_device()]
    return make(store, endpoint.rank, endpoint.size, options)


def _nccl(store: dist.Store, endpoint: Endpoint) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=endpoint.timeout)
    return dist.ProcessGroupNCCL(store, endpoint.rank, endpoint.size, options)


class _GroupWork:
    """A collective under way in a process group."""

    def __init__(self, wire: RealWire, work: Any, operation: str, count: int, x: Tensor, moved: Tensor) -> None:
        self._wire, self._work, self._operation, self._count = wire, work, operation, count
        self._x, self._moved = x, moved

    def done(self) -> bool:
        return self._work is None or bool(self._work.is_completed())

    def _ready(self, seconds: float) -> bool:
        if self._x.is_cuda:
            return self._poll(seconds)
        try:
            self._work.wait(timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError:
            if not self._work.is_completed():
                return False  # only this slice of the wait is over
            self._end()
        return True

    def _end(self) -> None:
        """Take note of a completed work: raise what ended it, if it did not end well."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._wire.endpoint.connection_lost(self._operation, str(error).splitlines()[0]) from error

    def _poll(self, seconds: float) -> bool:
        clock = self._wire.clock
        deadline = clock.now() + seconds
        while not self._work.is_completed():
            if clock.now() >= deadline:
                return False
            clock.sleep(0.0001)
        self._end()
        return True

    def _missing(self) -> list[int]:
        """The ranks that did not leave word that they wait for this collective, too."""
        wire = self._wire
        said = {peer: wire.endpoint.noted(f"waiting/{wire.name}/{peer}") for peer in range(wire.size)}
        del said[wire.rank]
        late = [peer for peer, count in said.items() if not isinstance(count, int) or count < self._count]
        return late or list(said)

    def _leave_word(self) -> None:
        self._wire.endpoint.note(f"waiting/{self._wire.name}/{self._wire.rank}", self._count)

    def wait(self, timeout: float | None = None) -> Tensor:
        if self._work is not None:
            wire = self._wire
            others = [peer for peer in range(wire.size) if peer != wire.rank]
            wire.endpoint.until(
                self._ready,
                waits_for=self._operation,
                needed=others,
                timeout=timeout,
                missing=self._missing,
                started=self._leave_word,
            )
            self._work = None
            if self._moved is not self._x:
                self._x.copy_(self._moved)
        return self._x


class _SendWork:
    def __init__(self, wire: RealWire, outgoing: Outgoing, to: int) -> None:
        self._wire, self._outgoing, self._to = wire, outgoing, to

    def done(self) -> bool:
        return self._outgoing.sent.is_set()

    def wait(self, timeout: float | None = None) -> None:
        endpoint = self._wire.endpoint
        what = f"send to rank {self._to}"
        endpoint.until(self._outgoing.sent.wait, waits_for=what, needed=[self._to], timeout=timeout)
        if self._outgoing.lost:
            raise endpoint.connection_lost(what, "closed by the other side")


class _ReceiveWork:
    def __init__(self, wire: RealWire, source: int | None, tag: str) -> None:
        self._wire, self._source = wire, source
        self._waiting = wire.endpoint.inbox.ask(source, tag)

    def done(self) -> bool:
        return self._waiting.filled.is_set()

    def wait(self, timeout: float | None = None) -> tuple[int, Message]:
        wire = self._wire
        if not self._waiting.filled.is_set():
            needed = [self._source] if self._source is not None else []
            what = "receive from anyone" if self._source is None else f"receive from rank {self._source}"
            wire.endpoint.until(self._waiting.filled.wait, waits_for=what, needed=needed, timeout=timeout)
        assert self._waiting.result is not None
        return self._waiting.result


class _TaskWork:
    """A task in a thread of its own; ends the process's wait with what it raised."""

    def __init__(self, wire: RealWire, task: Callable[[Wire], None], channel: Wire) -> None:
        self._wire, self._name = wire, channel.name
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(task, channel), name=channel.name, daemon=True)
        self._thread.start()

    def _run(self, task: Callable[[Wire], None], channel: Wire) -> None:
        try:
            task(channel)
        except BaseException as error:
            self._error = error
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        self._wire.endpoint.until(self._ended.wait, waits_for=f"the task {self._name}", needed=[], timeout=timeout)
        if self._error is not None:
            raise self._error
