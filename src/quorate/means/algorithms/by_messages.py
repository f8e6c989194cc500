"""`ByMessages`: sums that are formed by messages from worker to worker, as an algorithm says step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quorate.core.contracts import Wire, Work
from quorate.means.algorithms.steps import Cost, Step
from quorate.means.reducer import InParts
from quorate.wire.cost import piece_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quorate.core.vectors import Layout


class ByMessages(InParts, ABC):
    """The sum of what all workers hand in, formed in place, with the same bits on every worker.

    Parts are summed one after the other by a task beside the training thread, so they travel while backward still runs.
    Floats of less than four bytes are added, and travel until they are, as float32, and are rounded once. A wire has at
    most one reducer of this kind at a time. Where a worker dies in the middle of a sum, some of the others may have it,
    and all that lack something raise. Each algorithm tells its `pieces`, `steps` and `cost`, which need no torch.

    Cost per worker: `wire_bytes` sent; memory for a copy of one part, and for the pieces of it that are on their way.
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        from quorate.means.algorithms.in_turn import SumsInTurn  # loads torch, which steps and costs do without

        super().__init__(layout, wire)
        self._sums = SumsInTurn(wire, self.pieces(wire.size), tuple(self.steps(wire.size, wire.rank)))

    @staticmethod
    @abstractmethod
    def pieces(size: int) -> int:
        """Into how many pieces a vector is cut, as evenly as can be and the larger ones first (`tensor_split`)."""

    @staticmethod
    @abstractmethod
    def steps(size: int, rank: int) -> Iterator[Step]:
        """What worker `rank` of `size` sends and receives; equally many steps for each, empty where it does nothing.

        What is sent in a step is received in the same step.
        """

    @staticmethod
    @abstractmethod
    def cost(size: int) -> Cost:
        """What it costs among `size` workers, by the formulas of the source."""

    def _sum(self, x: Tensor) -> Work[Tensor]:
        return self._sums.start(x)

    def wire_bytes(self, size: int) -> int:
        """Bytes this worker sends for one sum among `size` workers."""
        return sum(self.bytes_of(p.numel, p.dtype, size, self.wire.rank) for p in self.layout.parts)

    @classmethod
    def bytes_of(cls, numel: int, dtype: torch.dtype, size: int, rank: int) -> int:
        """Bytes worker `rank` of `size` sends for the sum of so many numbers."""
        is_small = dtype.is_floating_point and dtype.itemsize < 4
        pieces = cls.pieces(size)
        return sum(
            piece_bytes(numel, 4 if is_small and step.send.adds else dtype.itemsize, piece, pieces)
            for step in cls.steps(size, rank)
            if step.send is not None
            for piece in step.send.pieces
        )
