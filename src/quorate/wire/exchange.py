"""Collectives made of messages: every worker sends one message to every other, then each combines those received.

Used for groups in both worlds, and in the real one for ragged collectives. There is one phase only, so a collective is
under way once it is called, whoever waits first. Sums are formed in order of rank, host by host, so all workers get the
same bits. A large broadcast goes along a tree (`children_of`), whose inner workers forward it in a task.
Cost per worker: P - 1 messages out; `all_reduce` sends (P - 1) n elements, `reduce_scatter` (P - 1) n / P, `broadcast`
2 n at most.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work, Write
from quorate.core.errors import ConfigurationError, QuorateError, WireTimeout
from quorate.core.fields import Fields
from quorate.wire.cut import WHOLE_BYTES, piece
from quorate.wire.swap import Envelope, Swap
from quorate.wire.work import Together

T = TypeVar("T")
IDLE_SECONDS = 60.0
"""Seconds of one wait of a task, which waits again."""


_SUMMED = (torch.float32, torch.float64, torch.int32, torch.int64, torch.complex64, torch.complex128)
"""Dtypes that the backends add; others are widened."""


@dataclass(frozen=True, slots=True)
class Value(Fields):
    """The message of `tell_all`."""

    value: Any  # open: plain JSON


def sum_in_order(tensors: Sequence[Tensor], hosts: Sequence[int] = ()) -> Tensor:
    """Return the sum, added in order; smaller floats are added in float32 and rounded once. Shares no memory.

    With the host of each tensor, those of one host are added in order, then the hosts' sums, in the order in which
    hosts first occur. The sums of several hosts are rounded, as they are sent in the dtype of the tensors.
    """
    first = tensors[0].detach()
    is_small = first.is_floating_point() and first.element_size() < 4
    wide = torch.float32 if is_small else first.dtype
    sums: dict[int, Tensor] = {}
    for x, host in zip(tensors, hosts or [0] * len(tensors), strict=True):
        if host in sums:
            sums[host].add_(x.detach())
        else:
            sums[host] = x.detach().to(wide, copy=True, memory_format=torch.contiguous_format)
    if is_small and len(sums) > 1:
        sums = {host: x.to(first.dtype).to(wide) for host, x in sums.items()}
    total, *rest = sums.values()
    for x in rest:
        total.add_(x)
    return total.to(first.dtype)


def summable(x: Tensor) -> Tensor:
    """Return `x` in a contiguous form that a backend can add: small floats as float32, small integers as int32."""
    whole = x.detach().resolve_conj().resolve_neg().contiguous()
    if x.dtype in _SUMMED:
        return whole
    return whole.float() if x.is_floating_point() else whole.int()


def describe(x: Tensor) -> str:
    """Return dtype and shape in words: `float32 (3, 4)`."""
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


def piece_written(wire: Wire, x: Tensor, write: Write) -> Tensor:
    """Return this worker's piece of `x` as `write` fills it, in memory that may be sent."""
    numel = pieces_of(x, wire.size)[wire.rank].numel()
    is_here = x.device.type == "cpu"
    place = wire.empty(numel, x.dtype) if is_here else torch.empty(numel, dtype=x.dtype, device=x.device)
    write([place])
    return place


def pieces_of(x: Tensor, size: int) -> list[Tensor]:
    """Return the pieces of `x` (n) of all `size` workers, as views."""
    return [x.detach()[piece(x.numel(), rank, size)] for rank in range(size)]


def assembled(x: Tensor, pieces: Sequence[Tensor]) -> Tensor:
    """Write the `pieces` of all workers, by rank, into `x` (n), and return it."""
    for rank, numbers in enumerate(pieces):
        x.detach()[piece(x.numel(), rank, len(pieces))] = numbers
    return x


class CollectivesByMessages(Wire):
    """A wire whose collectives consist of its own `send` and `receive`."""

    def __init__(self) -> None:
        self._calls = itertools.count()
        self._turns = Turns(self, "halves")

    @property
    def shares_memory(self) -> bool:
        """Whether workers of one host read large shared messages where their sender has written them."""
        return True

    @functools.cached_property
    def _hosts(self) -> list[int]:
        """The host of each worker of the start."""
        return [self.host_of(rank) for rank in range(self.size)]

    def _sum(self, messages: Sequence[Message]) -> Tensor:
        here = messages[self.rank].tensors[0].device
        return sum_in_order([m.tensors[0].to(here) for m in messages], self._hosts)

    def _swap(self, operation: str, outgoing: Sequence[Message], combine: Callable[[list[Message]], T]) -> Work[T]:
        """Send `outgoing[r]` to rank r; `combine` the messages received, by rank.

        The death of any worker ends it: a worker that knows of a death before its call sends nothing.

        All workers' `operation` must be equal (else each raises `Mismatch`, as it receives from all).
        """
        return self._exchange(operation, dict(enumerate(outgoing)), combine)

    def _exchange(
        self,
        operation: str,
        outgoing: Mapping[int, Message],
        combine: Callable[[list[Message]], T],
        forwards_to: Sequence[int] = (),
    ) -> Work[T]:
        """Send `outgoing`, and `combine` the messages received from the same workers, by rank.

        With `forwards_to` the message received is forwarded to these workers, from which messages are received, too.
        """
        tag, header = f"collective/{next(self._calls)}", Envelope(operation).header()
        everyone = [peer for peer in range(self.size) if peer != self.rank]
        sends = [
            self.send(Message(m.tensors, {**header, **m.header}, m.shared, m.urgent), peer, tag)
            for peer, m in outgoing.items()
            if peer != self.rank
        ]
        peers = [peer for peer in (*outgoing, *forwards_to) if peer != self.rank]
        receives = [self.receive(peer, tag, everyone) for peer in peers]
        if forwards_to:
            first, receives[0] = receives[0], self.receive(self.rank, tag, everyone)
            self._turns.add(lambda channel: self._forward(first, forwards_to, tag))
        own = outgoing[self.rank] if self.rank in outgoing else Message()
        return Swap(self, operation, peers, receives, sends, own, combine)

    def _forward(self, receive: Work[tuple[int, Message]], to: Sequence[int], tag: str) -> None:
        """Forward a message, in a task without a limit of time. The wait of the collective has one, and its errors."""
        with suppress(QuorateError):
            message = patiently(receive)[1]
            message = self._from_one_copy(message.tensors[0], message.header) if message.tensors else message
            for peer in (*to, self.rank):
                self.send(message, peer, tag)

    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        def combine(messages: list[Message]) -> Tensor:
            x.detach().copy_(self._sum(messages))
            return x

        return self._swap(f"all_reduce {describe(x)}", [Message((x,))] * self.size, combine)

    def reduce_scatter(self, x: Tensor) -> Work[Tensor]:
        pieces = x.flatten().tensor_split(self.size)

        def combine(messages: list[Message]) -> Tensor:
            return self._sum(messages)

        return self._swap(f"reduce_scatter {describe(x)}", [Message((piece,)) for piece in pieces], combine)

    def all_gather(self, x: Tensor, *, shared: bool = False) -> Work[list[Tensor]]:
        return self._swap(f"all_gather {x.dtype}", [Message((x,), shared=shared)] * self.size, self._received)

    def all_gather_into(self, x: Tensor, write: Write) -> Work[Tensor]:
        written = piece_written(self, x, write)

        def combine(messages: list[Message]) -> Tensor:
            return assembled(x, [message.tensors[0] for message in messages])

        return self._swap(f"all_gather_into {describe(x)}", [Message((written,), shared=True)] * self.size, combine)

    def all_to_all(
        self, pieces: Sequence[Tensor], *, shared: bool = False, shapes: Sequence[Sequence[int]] | None = None
    ) -> Work[list[Tensor]]:
        _one_each(pieces, self.size)
        outgoing = [Message((piece,), shared=shared) for piece in pieces]
        return self._swap(f"all_to_all {pieces[0].dtype}", outgoing, self._received)

    def all_to_all_single(self, x: Tensor) -> Work[list[Tensor]]:
        outgoing = [Message((view,), shared=True) for view in pieces_of(x, self.size)]
        return self._swap(f"all_to_all_single {describe(x)}", outgoing, self._received)

    def _received(self, messages: list[Message]) -> list[Tensor]:
        """Return each rank's tensor, on the device of this rank's, which is copied unless it is shared."""
        own = messages[self.rank]
        own_tensor = own.tensors[0].detach()
        tensors = [m.tensors[0].to(own_tensor.device) if m is not own else own_tensor for m in messages]
        return [x if x is not own_tensor or own.shared else own_tensor.clone() for x in tensors]

    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        is_small = x.nbytes < WHOLE_BYTES
        hosts = [0] * self.size if is_small else self._hosts
        children = children_of(hosts, root, shares=is_small or self.shares_memory)
        parent = next((rank for rank, own in enumerate(children) if self.rank in own), self.rank)

        def combine(messages: list[Message]) -> Tensor:
            if self.rank != root:
                x.detach().copy_(messages[parent].tensors[0])
            return x

        operation, own = f"broadcast from {root} {describe(x)}", children[self.rank]
        if self.rank != root:
            return self._exchange(operation, {parent: Message()}, combine, own)
        message = Message((x,)) if is_small or not own else self._from_one_copy(x, {})
        return self._exchange(operation, dict.fromkeys(own, message), combine)

    def _from_one_copy(self, x: Tensor, header: Mapping[str, Any]) -> Message:
        """Return a message with a copy of `x` that several workers of a host may read."""
        copied = self.empty(x.numel(), x.dtype).view(x.shape).copy_(x.detach())
        return Message((copied,), header, shared=True)

    def reduce(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        outgoing = [Message((x,)) if peer == root else Message() for peer in range(self.size)]

        def combine(messages: list[Message]) -> Tensor:
            if self.rank == root:
                x.detach().copy_(self._sum(messages))
            return x

        return self._swap(f"reduce to {root} {describe(x)}", outgoing, combine)

    def gather(self, x: Tensor, root: int = 0) -> Work[list[Tensor] | None]:
        outgoing = [Message((x,)) if peer == root else Message() for peer in range(self.size)]

        def combine(messages: list[Message]) -> list[Tensor] | None:
            if self.rank != root:
                return None
            return [m.tensors[0].to(x.device) if r != self.rank else x.detach().clone() for r, m in enumerate(messages)]

        return self._swap(f"gather to {root} {x.dtype}", outgoing, combine)

    def scatter(self, pieces: Sequence[Tensor] | None, root: int = 0) -> Work[Tensor]:
        if self.rank == root:
            assert pieces is not None, "the root of a scatter gives the pieces"
            _one_each(pieces, self.size)
            outgoing = [Message((piece,)) for piece in pieces]
        else:
            outgoing = [Message()] * self.size

        def combine(messages: list[Message]) -> Tensor:
            received = messages[root].tensors[0]
            return received.detach().clone() if self.rank == root else received

        return self._swap(f"scatter from {root}", outgoing, combine)

    def tell_all(self, operation: str, value: Any) -> Work[list[Any]]:
        outgoing = [Message(header=Value(value).header())] * self.size
        return self._swap(operation, outgoing, lambda messages: [Value.read(each.header).value for each in messages])

    def barrier(self) -> Work[None]:
        return self._swap("barrier", [Message()] * self.size, lambda messages: None)

    def exchange(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], tag: str
    ) -> Work[list[Tensor]]:
        works: list[Work[Any]] = [self.receive(source, tag) for source, _ in receives]
        works += [self.send(Message((x,)), to, tag) for to, x in sends]

        def received(results: list[Any]) -> list[Tensor]:
            return [results[place][1].tensors[0].to(x.device) for place, (_, x) in enumerate(receives)]

        return Together(works, received, self.clock)


def _one_each(pieces: Sequence[Tensor], size: int) -> None:
    if len(pieces) != size:
        raise ConfigurationError(f"{len(pieces)} pieces for {size} workers; give one for each")


def patiently(work: Work[T]) -> T:
    """Wait without a limit, in a task beside a wait that has one."""
    while True:
        try:
            return work.wait(IDLE_SECONDS)
        except WireTimeout:
            continue


CHILDREN = 2


def children_of(hosts: Sequence[int], root: int, *, shares: bool) -> list[list[int]]:
    """Return the workers to which each worker sends in a broadcast, those of other hosts first; pure.

    The workers of a host that share memory read one copy, whose place they get from one of them, its head. A head sends
    to two other heads at most, as does each worker without shared memory. So a worker sends at most twice, and a host
    receives once. `hosts` has the host of each rank; `shares`: whether the workers of a host share memory.
    """
    order = sorted(range(len(hosts)), key=lambda rank: (rank != root, hosts[rank] != hosts[root], hosts[rank], rank))
    head_of: dict[int, int] = {}
    for rank in order:
        head_of.setdefault(hosts[rank] if shares else rank, rank)
    heads = list(head_of.values())
    children = [list[int]() for _ in hosts]
    for place, head in enumerate(heads):
        children[head] += heads[CHILDREN * place + 1 : CHILDREN * (place + 1) + 1]
    if shares:
        for rank in order:
            if (head := head_of[hosts[rank]]) != rank:
                children[head].append(rank)
    return children


class Turns:
    """A task that lives while there are jobs; the thread of the wire calls `add`. A job gets the task's own channel,
    and raises nothing."""

    def __init__(self, wire: Wire, channel: str) -> None:
        self._wire, self._channel, self._lock = wire, channel, threading.Lock()
        self._waiting = deque[Callable[[Wire], None]]()
        self._is_working = False

    def add(self, job: Callable[[Wire], None]) -> None:
        """Run `job` after the earlier ones; never waits."""
        with self._lock:
            self._waiting.append(job)
            is_working, self._is_working = self._is_working, True
        if not is_working:
            self._wire.spawn(self._run, self._channel)

    def _run(self, wire: Wire) -> None:
        while (job := self._next()) is not None:
            job(wire)

    def _next(self) -> Callable[[Wire], None] | None:
        with self._lock:
            self._is_working = bool(self._waiting)
            return self._waiting.popleft() if self._waiting else None
