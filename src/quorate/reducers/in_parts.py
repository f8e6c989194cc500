"""`InParts`: what reducers have in common that sum a vector part by part, each part as soon as it is ready."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from quorate.core.contracts import Wire, Work
from quorate.wire.work import Together

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.core.vectors import Flat, Layout


class InParts(ABC):
    """The sum of what all workers hand in, formed in place; every worker hands in equal parts in the same order."""

    def __init__(self, layout: Layout, wire: Wire) -> None:
        self._layout, self._wire = layout, wire
        self.counted = wire.size
        """Workers whose contributions are in a sum."""
        self._under_way: dict[int, Work[Tensor]] = {}

    @abstractmethod
    def _sum(self, x: Tensor) -> Work[Tensor]:
        """Launch the sum of `x`, written into `x` itself; never waits."""

    @abstractmethod
    def wire_bytes(self, size: int) -> int:
        """Bytes this worker sends for one sum among `size` workers."""

    def part_ready(self, part: int, x: Tensor) -> None:
        """Launch the exchange of one part; never waits. Parts are launched in order, each once per `start`."""
        self._under_way[part] = self._sum(x)

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
        return self._sum(x)
