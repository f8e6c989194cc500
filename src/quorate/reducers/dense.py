"""`Dense`: every number of every part is summed by the wire's own all-reduce."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from quorate.core.contracts import Wire, Work
from quorate.core.vectors import Flat, Layout
from quorate.wire.cost import all_reduce_bytes
from quorate.wire.work import Together


class Dense:
    """The sum of what all workers hand in, formed in place.

    Cost per worker: `wire_bytes` sent, and as much received; no memory of its own.
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        self._layout, self._wire = layout, wire
        self.counted = wire.size
        """Workers whose contributions are in a sum."""
        self._under_way: dict[int, Work[Tensor]] = {}

    def part_ready(self, part: int, x: Tensor) -> None:
        """Launch the exchange of one part; never waits. Parts are launched in order, each once per `start`."""
        self._under_way[part] = self._wire.all_reduce(x)

    def start(self, x: Flat, kept: Callable[[], Flat] | None = None) -> Work[Flat]:
        """Launch what `part_ready` has not, and return the sum of all; it is written into `x`. `kept` is not needed."""
        for part, tensor in enumerate(x.parts):
            if part not in self._under_way:
                self.part_ready(part, tensor)
        works, self._under_way = self._under_way, {}
        return Together([works[part] for part in range(len(x.parts))], lambda parts: x, self._wire.clock)

    def kept(self, x: Flat) -> Callable[[], Flat]:
        """What `start` takes as `kept` for a vector that the sum is written into; never asked for here."""
        return lambda: x

    def abandon(self) -> Work[list[Tensor]]:
        """What `part_ready` has launched since the last `start`, as one work: no sum comes of it."""
        works, self._under_way = self._under_way, {}
        return Together(list(works.values()), lambda parts: parts, self._wire.clock)

    def again(self, part: int, x: Tensor) -> Work[Tensor]:
        """Sum one part once more, on its own."""
        return self._wire.all_reduce(x)

    def wire_bytes(self, size: int) -> int:
        """Bytes one worker sends for one sum among `size` workers."""
        return sum(all_reduce_bytes(p.numel * p.dtype.itemsize, size) for p in self._layout.parts)
