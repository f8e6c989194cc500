"""`Dense`: the wire's own all-reduce sums every number of every part.

Idea: Each part of the vector is passed to the wire unchanged. Workers of one host add in shared memory, hosts add among
themselves in few large messages, and on GPUs the backend computes the sum.

Cost: Per worker, with P workers and n bytes, 2 (P - 1) / P n bytes are sent, as in a ring; no memory of its own.

When it loses: Where one of the message-based algorithms fits the network better; `quorate explain ring -n 8` and the
like give the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from quorate.core.contracts import Wire, Work
from quorate.means.reducer import InParts
from quorate.wire.cut import all_reduce_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.core.vectors import Layout


class Dense(InParts):
    """The wire's own all-reduce: in shared memory on one host, and in few large messages between hosts."""

    def _sum(self, x: Tensor) -> Work[Tensor]:
        is_narrow = x.dtype is torch.bfloat16  # the dtype of a part is that in which it is to be summed
        return self.wire.all_reduce_narrow(x) if is_narrow else self.wire.all_reduce(x)

    def wire_bytes(self, size: int) -> int:
        """Return the bytes that one worker sends for one sum among `size` workers."""
        return sum(all_reduce_bytes(p.numel * p.dtype.itemsize, size) for p in self.layout.parts)


class DenseOnChannels(Dense):
    """The same sums, with the same bits, on several channels in turn: the latencies of parts pass beside each other."""

    def __init__(self, layout: Layout, wire: Wire, channels: int) -> None:
        super().__init__(layout, wire)
        self._wires = [wire, *(wire.channel(f"parts/{number}") for number in range(1, channels))]

    def part_ready(self, part: int, x: Tensor) -> None:
        wire = self._wires[part % len(self._wires)]
        is_narrow = x.dtype is torch.bfloat16
        self._under_way[part] = wire.all_reduce_narrow(x) if is_narrow else wire.all_reduce(x)
