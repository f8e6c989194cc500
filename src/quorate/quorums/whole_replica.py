"""Numbers of a replica whose pieces lie on several workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quorate.core.contracts import Wire


class WholeReplica:
    """Sums and norms over the pieces of one replica, whose workers make the same calls.

    Cost of a call: one small message to each other worker of the replica; nothing where the replica is not in pieces.
    """

    def __init__(self, wire: Wire | None, copies: Callable[[Tensor], int] = lambda p: 1) -> None:
        """`wire` connects the replica's workers (None: there is one); `copies` counts those that hold a parameter."""
        self._wire, self._copies = wire, copies
        self.is_here = wire is None
        """Whether this worker holds the full replica."""

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Return the sum of each of `numbers` over the pieces, in order of the pieces: the same bits on all."""
        if self._wire is None or not numbers:
            return list(numbers)
        every = self._wire.all_gather(torch.tensor(numbers, dtype=torch.float64)).wait()
        return [float(x) for x in torch.stack(every).sum(0).tolist()]

    def norm(self, tensors: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> float:
        """Return the Euclidean norm of `tensors`, one for each of `parameters`, over the replica; copies count once."""
        pairs = [(x, p) for x, p in zip(tensors, parameters, strict=True) if x is not None]
        norms = torch.stack([torch.linalg.vector_norm(x) for x, _ in pairs])
        if self._wire is None:
            return float(torch.linalg.vector_norm(norms))
        shares = torch.tensor([1 / self._copies(p) for _, p in pairs], dtype=torch.float64)
        return math.sqrt(*self.sums([float((norms.cpu().double() ** 2 * shares).sum())]))

    def all_are(self, *facts: bool) -> list[bool]:
        """Return, for each of `facts`, whether it is true on all pieces."""
        return [not count for count in self.sums([float(not fact) for fact in facts])]

    def same(self, number: int) -> int:
        """Return the `number` of the first piece."""
        if self._wire is None:
            return number
        return int(self._wire.broadcast(torch.tensor([number]), 0).wait()[0])
