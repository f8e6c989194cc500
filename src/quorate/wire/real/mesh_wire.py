"""`MeshWire`: the workers along one axis of a mesh, whose tensors on GPUs travel by torch's collectives among them.

Everything else goes by messages, as in any group: tensors of the CPU, headers, and all tensors once a worker has died
or joined. The backends neither name nor check what they move. So each pair of successive collectives is described by
messages, with shapes, the first time that it is called. All channels of an axis share torch's group, and one order.

On a GPU a wait lets the device's stream wait, and not this thread, where `in_stream` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from quorate.core.contracts import Done, Wire, Work
from quorate.wire.exchange import describe, summable
from quorate.wire.group import GroupWire
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.order import Order

T = TypeVar("T")
_dist: Any = dist
_GATHER = getattr(_dist, "all_gather_single", None) or _dist.all_gather_into_tensor  # its name since torch 2.13
_SCATTER = getattr(_dist, "reduce_scatter_single", None) or _dist.reduce_scatter_tensor
_MOVED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8)
"""Dtypes that all backends move; others are sent as bytes."""


class TorchGroup:
    """torch's group for one axis of the mesh, and the order of its collectives."""

    def __init__(self, endpoint: Endpoint, group: Any, name: str, ranks: Sequence[int], *, in_stream: bool) -> None:
        others = [rank for rank in ranks if rank != endpoint.rank]
        self.group, self.in_stream, self.order = group, in_stream, Order(endpoint, name, others)


class MeshWire(GroupWire):
    """`members` of `parent`, with torch's group of the same workers in the same order."""

    def __init__(self, torch_group: TorchGroup, parent: Wire, *group: Any) -> None:
        super().__init__(parent, *group)
        self._torch = torch_group

    def channel(self, name: str) -> Wire:
        return MeshWire(self._torch, self.parent.channel(name), self.ranks, self.units, self._there)

    def group(self, members: Sequence[int]) -> Wire:
        ranks, order = [self.ranks[member] for member in members], self._torch.order
        if ranks == list(self.ranks) or len(ranks) == 1 or self.units is not None:
            return super().group(members) if len(ranks) == 1 or self.units is not None else self
        limit = timedelta(seconds=self.timeout)
        group = dist.new_group(ranks, timeout=limit, use_local_synchronization=True, group_desc=self.name)
        name = f"{self.name}{ranks}"
        return MeshWire(TorchGroup(order.endpoint, group, name, ranks, in_stream=True), self.parent, ranks)

    def sums_on(self, device: torch.device) -> bool:
        return device.type != "cpu"

    def carries(self, x: Tensor) -> bool:
        return x.numel() > 0 and self._reaches(x)

    def _reaches(self, x: Tensor) -> bool:
        return x.device.type != "cpu" and not (self.dead or self.joined)

    def _agree(self, operation: str) -> int:
        """Compare a pair of collectives the first time. Return the number of this one."""
        order = self._torch.order
        if order.is_new(operation):
            self.tell_all(operation, None).wait()
        return order.called(operation)

    def _launched(self, operation: str, start: Callable[[], Any], moved: Tensor, end: Callable[[], T]) -> Work[T]:
        count = self._agree(operation)
        return MeshWork(self._torch, start(), operation, count, moved, end)

    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        if not self.carries(x):
            return super().all_reduce(x)
        moved, group = self._summable(x), self._torch.group

        def end() -> Tensor:
            if moved.data_ptr() != x.data_ptr():
                x.detach().copy_(moved)
            return x

        start = lambda: dist.all_reduce(moved, group=group, async_op=True)  # noqa: E731
        return self._launched(f"all_reduce {describe(x)}", start, moved, end)

    def _summable(self, x: Tensor) -> Tensor:
        """Return `x` as the backend adds it: two small floats have one sum, more of them are added in float32."""
        if self.size == 2 and x.dtype in (torch.bfloat16, torch.float16):
            return x.detach().contiguous()
        return summable(x)

    def reduce_scatter(self, x: Tensor) -> Work[Tensor]:
        if not self.carries(x) or x.numel() % self.size:
            return super().reduce_scatter(x)
        moved, group = self._summable(x).view(-1), self._torch.group
        piece = moved.new_empty(len(moved) // self.size)
        start = lambda: _SCATTER(piece, moved, group=group, async_op=True)  # noqa: E731
        return self._launched(f"reduce_scatter {describe(x)}", start, moved, lambda: piece.to(x.dtype))

    def all_gather(self, x: Tensor, *, shared: bool = False) -> Work[list[Tensor]]:
        if not (self._torch.in_stream and self.carries(x)):  # replicas gather codes, of different lengths
            return super().all_gather(x, shared=shared)
        own, group = _flat(x.detach()), self._torch.group
        every = own.new_empty(self.size * len(own))

        def end() -> list[Tensor]:
            return [piece.view(x.dtype).view(x.shape) for piece in every.chunk(self.size)]

        start = lambda: _GATHER(every, own, group=group, async_op=True)  # noqa: E731
        return self._launched(f"all_gather {describe(x)}", start, own, end)

    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        if not self.carries(x):
            return super().broadcast(x, root)
        whole, group = x.detach().contiguous(), self._torch.group
        moved = _flat(whole)

        def end() -> Tensor:
            if whole.data_ptr() != x.data_ptr():
                x.detach().copy_(whole)
            return x

        start = lambda: _dist.broadcast(moved, group=group, group_src=root, async_op=True)  # noqa: E731
        return self._launched(f"broadcast from {root} {describe(x)}", start, moved, end)

    def all_to_all(
        self, pieces: Sequence[Tensor], *, shared: bool = False, shapes: Sequence[Sequence[int]] | None = None
    ) -> Work[list[Tensor]]:
        here = pieces[self.rank]
        if not self._reaches(here):
            return super().all_to_all(pieces, shared=shared, shapes=shapes)
        if shapes is None:
            shapes_of_all = self.tell_all("shapes for an all_to_all", [list(piece.shape) for piece in pieces]).wait()
            shapes = [every[self.rank] for every in shapes_of_all]
        flat = [_flat(piece.detach()) for piece in pieces]
        sent, counts = torch.cat(flat), [len(x) for x in flat]
        width = here.element_size() // sent.element_size()
        taken = [math.prod(shape) * width for shape in shapes]
        received, group = sent.new_empty(sum(taken)), self._torch.group

        def end() -> list[Tensor]:
            parts = zip(received.split(taken), shapes, strict=True)
            return [x.view(here.dtype).view(list(shape)) for x, shape in parts]

        start = lambda: dist.all_to_all_single(received, sent, taken, counts, group=group, async_op=True)  # noqa: E731
        return self._launched(f"all_to_all {here.dtype}", start, sent, end)

    def exchange(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]], tag: str
    ) -> Work[list[Tensor]]:
        if not all(self._reaches(x) for _, x in (*sends, *receives)):
            return super().exchange(sends, receives, tag)
        group: Any = self._torch.group
        pairs: list[tuple[Any, int, Tensor]] = [(dist.isend, to, _flat(x.detach())) for to, x in sends if x.numel()]
        pairs += [(dist.irecv, source, _flat(x)) for source, x in receives if x.numel()]
        if not pairs:
            return Done([x for _, x in receives])
        operations = [dist.P2POp(way, x, group=group, group_peer=peer) for way, peer, x in pairs]
        operation = f"exchange of {tag}"
        self._torch.order.endpoint.recent.append((self.name, self._torch.order.count, operation))
        works = dist.batch_isend_irecv(operations)
        end = lambda: [x for _, x in receives]  # noqa: E731
        return MeshWork(self._torch, _Batch(works), operation, self._torch.order.count, pairs[0][2], end)


def _flat(x: Tensor) -> Tensor:
    """Return the numbers of `x` in order, as bytes where backends do not move its dtype."""
    flat = x.contiguous().view(-1)
    return flat if x.dtype in _MOVED else flat.view(torch.uint8)


class _Batch:
    """Messages under way; those of gloo are lost by a wait with a limit of its own."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = list(works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self, *_: Any) -> None:
        while self._works:
            self._works[0].wait()
            del self._works[0]


class MeshWork(Generic[T]):
    """A collective under way; the wait for it calls `end`, once, and returns its result."""

    def __init__(
        self, torch_group: TorchGroup, work: Any, operation: str, count: int, moved: Tensor, end: Callable[[], T]
    ) -> None:
        self._order, self._work, self._operation, self._count = torch_group.order, work, operation, count
        self._in_stream, self._is_on_gpu = torch_group.in_stream and moved.device.type != "cpu", moved.is_cuda
        self._moved: Tensor | None = moved
        self._end = end
        self._result: T

    def done(self) -> bool:
        order = self._order
        return self._moved is None or bool(self._work.is_completed()) or order.endpoint.is_in_vain(order.others)

    def follow(self, timeout: float | None = None) -> T:
        """See `wire.work.followed`."""
        self._in_stream = True
        return self.wait(timeout)

    def wait(self, timeout: float | None = None) -> T:
        if self._moved is not None:
            order, count = self._order, self._count
            if not self._in_stream:
                with order.waiting(count, self._operation, "by backend"):
                    order.endpoint.until(
                        self._ready,
                        waits_for=self._operation,
                        needed=order.others,
                        timeout=timeout,
                        missing=lambda: order.missing(count),
                    )
            self._check()
            self._result, self._moved = self._end(), None
        return self._result

    def _ready(self, seconds: float) -> bool:
        clock = self._order.endpoint.clock
        deadline = clock.now() + seconds
        while self._is_on_gpu and not self._work.is_completed():
            if clock.now() >= deadline:
                return False
            clock.sleep(0.0001)
        if not self._is_on_gpu:
            try:
                self._work.wait(timedelta(seconds=max(seconds, 0.001)))
            except RuntimeError:
                return bool(self._work.is_completed())  # else only this slice of the wait is over
        return True

    def _check(self) -> None:
        """Let the stream of a GPU wait. Raise the error of a completed work, if there is one."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._order.endpoint.connection_lost(self._operation, str(error).splitlines()[0]) from error
