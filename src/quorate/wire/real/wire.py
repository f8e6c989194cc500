"""`RealWire`: sums in memory that the processes of one host share, and between hosts by messages; or over a c10d
process group, as broadcasts between GPUs are. Ragged collectives and messages use sockets.

Process groups of torch serve collectives that use neither shared memory nor messages.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from quorate.core.contracts import Common, Message, Wire, Work, Write
from quorate.core.device_copies import waiting_once
from quorate.core.errors import ConfigurationError
from quorate.core.fields import Header
from quorate.core.members import Members
from quorate.core.telling import tell
from quorate.wire.exchange import CollectivesByMessages, describe, summable
from quorate.wire.failure import report_coming
from quorate.wire.group import GroupWire
from quorate.wire.real import works
from quorate.wire.real.carried import is_small_float
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.gpus import HOST, NCCL, why_not_nccl
from quorate.wire.real.host_exchange import Post
from quorate.wire.real.host_sums import HostSums, layout_of
from quorate.wire.real.links import Lane
from quorate.wire.real.loans import find_common, make_common
from quorate.wire.real.order import Order
from quorate.wire.real.process_groups import MAKERS
from quorate.wire.real.shared_segment import SharedSegment
from quorate.wire.real.shelf import Sum
from quorate.wire.real.sums import Beside, Sums
from quorate.wire.store import BoardStore
from quorate.wire.work import SENT

T = TypeVar("T")
_CARRIED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8)
"""Dtypes that the backends move; others are sent as bytes."""

_SUMS = "sums in shared memory"
"""The tag of messages about sums."""


class RealWire(CollectivesByMessages):
    """One process's wire on one channel; its process groups are made when a collective first needs them.

    If hosts have shared memory, CPU tensors of any size are summed in order of rank on each host, and then in order of
    hosts. Otherwise, and by NCCL, they are summed in the order of the backend. With `gpus="host"` tensors of GPUs are
    copied to the CPU and back.
    """

    def __init__(
        self, endpoint: Endpoint, name: str = "main", beside: Beside | None = None, *, gpus: str = NCCL
    ) -> None:
        super().__init__()
        self.endpoint, self.name, self._tags, self._gpus = endpoint, name, f"{name}:", gpus
        self.rank, self.size = endpoint.rank, endpoint.size
        self.board, self.clock, self.timeout = endpoint.board, endpoint.clock, endpoint.timeout
        self.order = Order(endpoint, name)
        self._groups: dict[str, Any] = {}
        self._stores: list[BoardStore] = []
        self._beside = Beside() if beside is None else beside
        self._sums: Sums | HostSums | None = None
        self._channels: dict[str, RealWire] = {}
        self._launches = deque[works.GroupWork]()
        """The collectives of process groups that are not launched yet, in order."""
        self._busy = threading.Lock()
        self._newest_staged: tuple[list[tuple[weakref.ref[Tensor], int]], list[weakref.ref[Tensor]]] = [], []
        """The tensors of the newest message of a GPU's, by identity and version, and their copies on the CPU."""

    @property
    def members(self) -> Members:
        return self.endpoint.members_now()

    @property
    def max_size(self) -> int:
        return self.endpoint.max_size

    def host_of(self, rank: int) -> int:
        return self.endpoint.host_of(rank)

    def enter(self) -> None:
        report_coming(self.board, self.rank)

    def tolerate_deaths(self, tag: str) -> None:
        self.endpoint.followers.append(self._tags + tag)

    def channel(self, name: str) -> Wire:
        if name not in self._channels:
            self._channels[name] = RealWire(self.endpoint, f"{self.name}/{name}", self._beside, gpus=self._gpus)
        return self._channels[name]

    def group(self, members: Sequence[int]) -> Wire:
        return GroupWire(self, members)

    def use_device(self, device: torch.device) -> None:
        if device.type == "cpu" or self.endpoint.has_model:
            return
        choose = getattr(torch.get_device_module(device), "set_device", None)
        if choose is not None:  # else there is one device of this type
            self.endpoint.has_model = True
            choose(device)
            self.endpoint.use_gpu(device)

    def reaches(self, group: Any, device: str) -> bool:
        """Return whether torch's `group` is to move tensors of devices of this type."""
        if device == "cpu" or self._gpus == HOST:
            return False
        try:
            return str(group._get_backend(torch.device(device)).name()) != "gloo"  # which copies to the host
        except RuntimeError:  # it has none
            return False

    def connect(self, device: torch.device) -> None:
        if self.size > 1 and self._shares(device):
            self._summing()
        elif self.size > 1:
            self._group(torch.device("cpu") if self._gpus == HOST else device)

    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        return self._all_reduce(x, is_narrow=False)

    def all_reduce_narrow(self, x: Tensor) -> Work[Tensor]:
        return self._all_reduce(x, is_narrow=is_small_float(x.dtype))

    def _all_reduce(self, x: Tensor, *, is_narrow: bool) -> Work[Tensor]:
        operation = f"all_reduce {describe(x)}"
        if self.size == 1 or x.numel() == 0:
            return super().all_reduce(x)
        if not self._shares(x.device):
            moved = self._carried(x).contiguous() if is_narrow else summable(self._carried(x))
            return self._launch(operation, lambda group: group.allreduce([moved]), x, moved)
        with self._alone():
            count, sums = self.order.called(operation), self._summing()
            moved = self._carried(x)
            moved = moved.contiguous() if sums.adds_small_floats and is_small_float(x.dtype) else summable(moved)
            narrow = x.dtype if is_small_float(x.dtype) else None
            return works.SumWork(self.order, sums, operation, count, x, sums.start(operation, moved, narrow))

    @functools.cached_property
    def shares_memory(self) -> bool:
        return self.endpoint.shares_memory()

    def _shares(self, device: torch.device) -> bool:
        return (device.type == "cpu" or self._gpus == HOST) and self.shares_memory

    def _carried(self, x: Tensor) -> Tensor:
        """Return `x` on the device of the exchange: its GPU, or the CPU."""
        if self._gpus != HOST or x.device.type == "cpu":
            return x.detach()
        self.tell_of_host(x.device)
        return self.empty(x.numel(), x.dtype).view(x.shape).copy_(x.detach())

    def tell_of_host(self, device: torch.device) -> None:
        """Say once in a run, on stderr, that tensors of GPUs are summed in the memory of the host, and why."""
        if self.endpoint.has_told_of_host or self._gpus != HOST:
            return
        self.endpoint.has_told_of_host = True
        why = why_not_nccl(self.board, self.size, device)
        if self.rank == why.teller:
            tell(f"quorate: tensors on {device.type} devices are summed in the memory of the host: {why.words}\n")

    def _summing(self) -> Sums | HostSums:
        if self._sums is None:
            endpoint, tag = self.endpoint, self._tags + _SUMS

            def send(message: Message, to: int) -> object:
                return self.send(message, to, _SUMS)

            if endpoint.is_local:
                self._sums = Sums(endpoint, tag, send, self._beside)
            else:
                layout = layout_of(self.size, self.host_of)
                ranks = layout.hosts[layout.place_of(self.rank)]
                segment = SharedSegment(endpoint, tag, send, ranks, has_bells=True)
                send_part = functools.partial(self._send, lane=Lane.SUMS)
                post = Post(send_part, lambda source, tag: endpoint.inbox.ask(source, self._tags + tag, segment.ring))
                self._sums = HostSums(segment, layout, self.rank, post, _SUMS)
        return self._sums

    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        if self.size == 1 or x.numel() == 0 or x.device.type == "cpu" or self._gpus == HOST:
            return super().broadcast(x, root)
        whole = x.detach().contiguous()
        carried = whole if x.dtype in _CARRIED else whole.view(-1).view(torch.uint8)
        options = dist.BroadcastOptions()
        options.rootRank = root
        operation = f"broadcast from {root} {describe(x)}"
        return self._launch(operation, lambda group: group.broadcast([carried], options), x, whole)

    def reduce(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        if self.size == 1 or x.numel() == 0:
            return super().reduce(x, root)
        wide = summable(self._carried(x))
        options = dist.ReduceOptions()
        options.rootRank = root
        operation = f"reduce to {root} {describe(x)}"
        return self._launch(operation, lambda group: group.reduce([wide], options), x, wide)

    def _launch(self, operation: str, start: Callable[[Any], Any], x: Tensor, moved: Tensor) -> Work[Tensor]:
        """Launch a collective of a process group; a new one once all workers have sent a message that describes it."""
        with self._alone():
            description: Work[None] | None = None
            if self.order.is_new(operation):
                description = super()._exchange(operation, dict.fromkeys(range(self.size), Message()), lambda _: None)
            count = self.order.called(operation)
            launch = functools.partial(self._started, start, moved.device)
            return works.GroupWork(self.order, self._launches, launch, description, operation, count, x, moved)

    def _started(self, start: Callable[[Any], Any], device: torch.device) -> Any:
        return start(self._group(device))

    def all_gather_into(self, x: Tensor, write: Write) -> Work[Tensor]:
        operation = f"all_gather_into {describe(x)}"
        if self.order.is_new(operation) or not x.numel() or not self._lies_here(x):
            return super().all_gather_into(x, write)
        with self._alone():
            return self._in_memory(operation, x, lambda sums: sums.put(operation, x, write))

    def all_to_all_single(self, x: Tensor) -> Work[list[Tensor]]:
        operation = f"all_to_all_single {describe(x)}"
        if self.order.is_new(operation) or not x.numel() or not self._lies_here(x):
            return super().all_to_all_single(x)
        with self._alone():
            return works.LookWork(self._in_memory(operation, x, lambda sums: sums.look_at(operation, x)), x.dtype)

    def _in_memory(self, operation: str, x: Tensor, begin: Callable[[Sums], Sum]) -> works.SumWork:
        count, sums = self.order.called(operation), self._summing()
        assert isinstance(sums, Sums)
        return works.SumWork(self.order, sums, operation, count, x, begin(sums))

    def _lies_here(self, x: Tensor) -> bool:
        """Whether other workers can access all `x` in shared memory."""
        return self.size > 1 and self.endpoint.is_local and x.device.type == "cpu" and self.shares_memory

    def _exchange(
        self,
        operation: str,
        outgoing: Mapping[int, Message],
        combine: Callable[[list[Message]], T],
        forwards_to: Sequence[int] = (),
    ) -> Work[T]:
        with self._alone():
            count = self.order.called(operation)
            work = super()._exchange(operation, outgoing, combine, forwards_to)
            return works.MessagesWork(self.order, work, operation, count)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise AssertionError(f"two threads use the wire {self.name} at once; give each a channel of its own")
        try:
            yield
        finally:
            self._busy.release()

    def _group(self, device: torch.device) -> Any:
        group = self._groups.get(device.type)
        if group is None:
            store = BoardStore(self.board, f"generation/0/group/{self.name}/{device.type}")
            make = MAKERS.get(device.type, MAKERS["cpu"])
            group = self._groups[device.type] = make(store, self.endpoint, self.name)
            self._stores.append(store)  # torch keeps its native part only, and NCCL asks it later
        return group

    def sums_on(self, device: torch.device) -> bool:
        return device.type != "cpu" and self._gpus != HOST

    def on_host(self, x: Tensor, into: Tensor | None = None) -> Work[Tensor]:
        return super().on_host(x, into) if x.device.type == "cpu" else works.CopyWork(self.endpoint, x, into)

    def send(self, message: Message, to: int, tag: str) -> Work[None]:
        if to != self.rank:
            return self._send(message, to, tag)
        own = message.tensors
        if own:
            own = tuple(x.detach() if message.shared else x.detach().clone() for x in own)
        self.endpoint.inbox.put(to, self._tags + tag, Message(own, dict(message.header), message.shared))
        return SENT

    def _send(self, message: Message, to: int, tag: str, lane: Lane = Lane.USUAL) -> Work[None]:
        self._known(to)
        mailbox = self.endpoint.mailbox
        assert mailbox is not None
        if message.tensors and any(x.device.type != "cpu" for x in message.tensors):
            message = self._staged(message)
        try:
            return works.SendWork(self.endpoint, mailbox.send(message, to, self._tags + tag, lane), to)
        except ConnectionError as error:
            if self.endpoint.followers:
                return SENT  # it has died, as the board will show, and the others outlive it
            raise self.endpoint.connection_lost(f"send to rank {to}", str(error)) from error

    def _staged(self, message: Message) -> Message:
        """Return a message of a GPU's tensors with copies on the CPU: one wait, and one copy for all receivers."""
        before, copies = self._newest_staged
        sources = [(source(), version) for source, version in before]  # an id would be that of a later tensor, too
        is_same = len(sources) == len(message.tensors) and all(
            source is x and version == x._version for (source, version), x in zip(sources, message.tensors, strict=True)
        )
        staged = [copy() for copy in copies] if is_same else []
        if not staged or None in staged:
            with waiting_once() as move:
                staged = [move(x.contiguous(), torch.device("cpu")) for x in message.tensors]
            self._newest_staged = (
                [(weakref.ref(x), x._version) for x in message.tensors],
                [weakref.ref(copy) for copy in staged if copy is not None],
            )
        return replace(message, tensors=tuple(copy for copy in staged if copy is not None))

    def receive(self, source: int | None, tag: str, needs: Sequence[int] = ()) -> Work[tuple[int, Message]]:
        if source is not None:
            self._known(source)
        return works.ReceiveWork(self.endpoint, source, self._tags + tag, needs)

    def _known(self, peer: int) -> None:
        size = self.endpoint.max_size
        if not 0 <= peer < size:
            raise ConfigurationError(f"rank {peer} is not a rank of this wire; its ranks are 0 to {size - 1}")

    def empty(self, numel: int, dtype: torch.dtype, *, patience: float = 0.0) -> Tensor:
        mailbox = self.endpoint.mailbox
        return torch.empty(numel, dtype=dtype) if mailbox is None else mailbox.empty(numel, dtype, patience)

    def trim(self) -> None:
        if self.endpoint.mailbox is not None:
            self.endpoint.mailbox.trim()

    def lend(self, x: Tensor) -> dict[str, Any] | None:
        mailbox = self.endpoint.mailbox
        loan = None if mailbox is None else mailbox.lend(x)
        return None if loan is None else loan.header()

    def borrow(self, loan: Header, *, copy_of: Tensor | None = None) -> Tensor:
        mailbox = self.endpoint.mailbox
        return super().borrow(loan) if mailbox is None else mailbox.borrower.borrow(loan, copy_of=copy_of)

    def make_common(self, nbytes: int) -> Common:
        return make_common(nbytes)

    def find_common(self, invitation: Message) -> Common:
        return find_common(invitation)

    def spawn(self, task: Callable[[Wire], None], name: str) -> Work[None]:
        return works.TaskWork(self.endpoint, task, self.channel(name))

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        if self.endpoint.members.dead:
            abandon(self._groups.values())
        self._groups.clear()
        if isinstance(self._sums, HostSums):
            self._sums.close()
        self._sums = None
        if self.name == "main":
            self._beside.close()
            self.endpoint.close()


def abandon(groups: Iterable[Any]) -> None:
    """Keep `groups` as long as the process lives: their end would wait for collectives with dead workers."""
    for group in groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
