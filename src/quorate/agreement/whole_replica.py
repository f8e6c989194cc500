"""Numbers of a whole replica, where this worker has a piece of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quorate.core.contracts import Wire


class WholeReplica:
    """`row` are the workers of the replica, which make the same calls; None: this worker has all of it.

    Cost of a call: one small message to each other worker of the row.
    """

    def __init__(self, row: Wire | None) -> None:
        self._row = row

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Of the pieces' `numbers`, in order of the pieces: the same bits on all."""
        if self._row is None or not numbers:
            return list(numbers)
        every = self._row.all_gather(torch.tensor(numbers, dtype=torch.float64)).wait()
        return [float(x) for x in torch.stack(every).sum(0).tolist()]

    @property
    def is_here(self) -> bool:
        """Whether this worker has all of it."""
        return self._row is None

    def norm(self, of_piece: float | Tensor) -> float:
        """Euclidean, of a vector over the replica."""
        return float(of_piece) if self._row is None else math.sqrt(*self.sums([float(of_piece) ** 2]))

    def all_are(self, *facts: bool) -> list[bool]:
        """Whether each is so of all pieces."""
        return [not count for count in self.sums([float(not fact) for fact in facts])]

    def same(self, number: int) -> int:
        """That of the first piece."""
        if self._row is None:
            return number
        return int(self._row.broadcast(torch.tensor([number]), 0).wait()[0])
