"""`ByMessages`: sums formed by messages from worker to worker, step by step as an algorithm says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quorate.core.contracts import Wire, Work
from quorate.means.algorithms.steps import Cost, Step
from quorate.means.reducer import InParts
from quorate.wire.cut import piece_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quorate.core.vectors import Layout


class ByMessages(InParts, ABC):
    """The sum of the vectors of all workers, formed in place, with the same bits on every worker.

    Parts are summed one after the other by a task beside the training thread, so they travel while backward still runs.
    Floats of less than four bytes are added, and sent until they are complete, as float32, and are rounded once. A wire
    has at most one reducer of this kind at a time. If a worker dies in the middle of a sum, some of the others may have
    it, and all that lack it raise. Each algorithm defines its `pieces`, `steps` and `cost`, which need no torch.

    Cost per worker: `wire_bytes` sent; memory for a copy of one part, and for the pieces of it that are on their way.
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        from quorate.means.algorithms.in_turn import SumsInTurn  # loads torch, which steps and costs do without

        super().__init__(layout, wire)
        self._sums = SumsInTurn(wire, self.pieces(wire.size), tuple(self.steps(wire.size, wire.rank)))

    @staticmethod
    @abstractmethod
    def pieces(size: int) -> int:
        """Return the number of pieces of a vector: as even as can be, the larger ones first (`tensor_split`)."""

    @staticmethod
    @abstractmethod
    def steps(size: int, rank: int) -> Iterator[Step]:
        """Yield the transfers of worker `rank` of `size`; equally many steps for each worker, some of them empty.

        A message is received in the step in which it is sent.
        """

    @staticmethod
    @abstractmethod
    def cost(size: int) -> Cost:
        """Return the cost among `size` workers, by the formulas of the source."""

    def _sum(self, x: Tensor) -> Work[Tensor]:
        return self._sums.start(x)

    def wire_bytes(self, size: int) -> int:
        """Return the bytes that this worker sends for one sum among `size` workers."""
        return sum(self.bytes_of(p.numel, p.dtype, size, self.wire.rank) for p in self.layout.parts)

    @classmethod
    def bytes_of(cls, numel: int, dtype: torch.dtype, size: int, rank: int) -> int:
        """Return the bytes that worker `rank` of `size` sends for the sum of `numel` numbers."""
        is_small = dtype.is_floating_point and dtype.itemsize < 4
        pieces = cls.pieces(size)
        return sum(
            piece_bytes(numel, 4 if is_small and step.send.adds else dtype.itemsize, piece, pieces)
            for step in cls.steps(size, rank)
            if step.send is not None
            for piece in step.send.pieces
        )
