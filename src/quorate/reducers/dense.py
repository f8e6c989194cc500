"""`Dense`: every number of every part is summed by the wire's own all-reduce."""

from __future__ import annotations

from torch import Tensor

from quorate.core.contracts import Work
from quorate.reducers.reducer import Reducer
from quorate.wire.cost import all_reduce_bytes


class Dense(Reducer):
    """The sum of what all workers hand in, formed in place.

    Cost per worker: `wire_bytes` sent, and as much received; no memory of its own.
    """

    def part_ready(self, part: int, x: Tensor) -> None:
        self._under_way[part] = self.wire.all_reduce(x)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        return self.wire.all_reduce(x)

    def wire_bytes(self, size: int) -> int:
        return sum(all_reduce_bytes(p.numel * p.dtype.itemsize, size) for p in self.layout.parts)
