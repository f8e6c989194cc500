"""Numbers of a whole replica, where this worker has a piece of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quorate.core.contracts import Wire


class WholeReplica:
    """`row` are the workers of the replica, which make the same calls; None: this worker has all of it.

    Cost of a call: one small message to each other worker of the row.
    """

    def __init__(self, row: Wire | None, copies: Callable[[Tensor], int] = lambda p: 1) -> None:
        """`copies` says how many workers of the row have the same numbers of a parameter."""
        self._row, self._copies = row, copies

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

    def norm(self, tensors: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> float:
        """Euclidean, of tensors of these parameters over the replica; what several workers have counts once."""
        pairs = [(x, p) for x, p in zip(tensors, parameters, strict=True) if x is not None]
        norms = torch.stack([torch.linalg.vector_norm(x) for x, _ in pairs])
        if self._row is None:
            return float(torch.linalg.vector_norm(norms))
        shares = torch.tensor([1 / self._copies(p) for _, p in pairs], dtype=torch.float64)
        return math.sqrt(*self.sums([float((norms.double().cpu() ** 2 * shares).sum())]))

    def all_are(self, *facts: bool) -> list[bool]:
        """Whether each is so of all pieces."""
        return [not count for count in self.sums([float(not fact) for fact in facts])]

    def same(self, number: int) -> int:
        """That of the first piece."""
        if self._row is None:
            return number
        return int(self._row.broadcast(torch.tensor([number]), 0).wait()[0])
