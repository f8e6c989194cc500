"""FSDP's two collectives over a wire of ours, for numbers on the CPU.

Every worker gives each other one its piece, in memory that on one host both look at: nothing is copied on the way. What
is sent is what the theory says, (S - 1) / S of the vector; a sum is formed in order of rank, host by host, as that of
`Wire.reduce_scatter`. Gloo's own reduce-scatter forms the whole sum on every worker.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import Mismatch
from quorate.sharding.traffic import Traffic
from quorate.wire.exchange import describe, sum_in_order
from quorate.wire.swap import Swap

REMEDY = (
    "; workers of a replica use the blocks of a model in shards in one order, so decide alike on all of them which "
    "blocks are used, or, where nothing is trained, calculate inside `with quorate.whole(model):`"
)
_OF_A_BLOCK = re.compile(r"(all_gather|reduce_scatter) of ")

_PATIENCE = 1.0
"""Seconds for which a buffer is waited for that others still read: they have to come as far for the next exchange."""


class Collected(dist.Work):
    """A collective under way, as torch wants it."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: Any = None) -> bool:
        """Return when the result is there. Raises as `core.contracts.Work.wait`."""
        if self._finish is not None:
            self._finish()
            self._finish = None  # which holds what has come
        return True


class Pieces:
    """The exchanges of one model's pieces among the workers of a replica, in the order in which they are called."""

    def __init__(self, wire: Wire, traffic: Traffic) -> None:
        self.wire, self.traffic, self._calls = wire, traffic, itertools.count()
        self.hosts = [wire.host_of(rank) for rank in range(wire.size)]

    def swap(
        self, operation: str, outgoing: Sequence[Tensor], header: Mapping[str, Any] = MappingProxyType({})
    ) -> Work[list[Message]]:
        """Give each worker its tensor, which nobody changes any more; what each has given here, by rank."""
        wire, tag = self.wire, f"pieces/{next(self._calls)}"
        messages = [Message((x,), {"operation": operation, **header}, shared=True) for x in outgoing]
        others = [peer for peer in range(wire.size) if peer != wire.rank]
        sends = [wire.send(messages[peer], peer, tag) for peer in others]
        receives = [wire.receive(peer, tag, others) for peer in others]
        return Swap(wire, operation, others, receives, sends, messages[wire.rank], list)

    def wait(self, work: Work[list[Message]]) -> list[Message]:
        """The messages of `work`, by rank. Raises as `Work.wait`; a `Mismatch` says what makes blocks agree."""
        try:
            return self.traffic.wait(work, self.wire.clock)
        except Mismatch as error:
            raise Mismatch(f"{error}{REMEDY if _OF_A_BLOCK.search(str(error)) else ''}") from None

    def meet(self, call: str) -> None:
        """Wait until all have come to the same `call`. Raises `Mismatch` where one has come to something else."""
        self.wait(self.swap(call, [torch.empty(0)] * self.wire.size))

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory from which a message needs no copying."""
        (numel,) = size
        return self.wire.empty(numel, dtype, patience=_PATIENCE)

    def end(self, finish: Callable[[], None], is_async: bool) -> Collected | None:
        """Wait now, or let torch wait."""
        if is_async:
            return Collected(finish)
        finish()
        return None


class WireAllGather:
    """Implements torch's `AllGather` for the parameters of one block; its name travels with them."""

    def __init__(self, pieces: Pieces, block: str = "") -> None:
        self._pieces, self.allocate, self._of = pieces, pieces.allocate, f" of {block}," if block else ""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: object, async_op: bool = False
    ) -> Collected | None:
        pieces, wire = self._pieces, self._pieces.wire
        work = pieces.swap(f"all_gather{self._of} {describe(input_tensor)}", [input_tensor.detach()] * wire.size)
        places = output_tensor.chunk(wire.size)

        def finish() -> None:
            for source, message in enumerate(pieces.wait(work)):
                if source != wire.rank:  # what is given is a piece of the output already
                    places[source].copy_(message.tensors[0])

        return pieces.end(finish, async_op)


class WireReduceScatter:
    """Implements torch's `ReduceScatter` for the gradients of one block; its name travels with them."""

    def __init__(self, pieces: Pieces, block: str = "") -> None:
        self._pieces, self._has_input, self._of = pieces, False, f" of {block}," if block else ""
        self.unused: frozenset[int] = frozenset()
        """Positions of parameters without a gradient: before a call those of this worker, after it those of all."""
        self.reduced: Callable[[], None] = lambda: None
        """Called when a sum is there."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """For the input, which travels, and then for the output, which stays: it becomes the gradient."""
        self._has_input = not self._has_input
        if self._has_input:
            return self._pieces.allocate(size, dtype=dtype, device=device)
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: object, op: Any, async_op: bool = False
    ) -> Collected | None:
        pieces, wire = self._pieces, self._pieces.wire
        self._has_input = False
        given = list(input_tensor.detach().chunk(wire.size))
        header = {"unused": sorted(self.unused)} if self.unused else {}
        work = pieces.swap(f"reduce_scatter{self._of} {describe(output_tensor)}", given, header)

        def finish() -> None:
            messages = pieces.wait(work)
            came = [message.tensors[0] for message in messages]
            if self.unused:
                self.unused = self.unused.intersection(*(message.header.get("unused", ()) for message in messages))
            if output_tensor.element_size() < 4 or len(set(pieces.hosts)) > 1:
                output_tensor.copy_(sum_in_order(came, pieces.hosts))
            else:
                torch.add(came[0], came[1], out=output_tensor)
                for numbers in came[2:]:
                    output_tensor.add_(numbers)
            if op == dist.ReduceOp.AVG:
                output_tensor.div_(wire.size)
            self.reduced()

        return pieces.end(finish, async_op)
