"""Top-k: the largest numbers of each tensor, and their positions.

Idea: From each tensor of n numbers the max(1, floor(density n)) of largest absolute value are sent, each with its
position; all others count as 0 this time. What is left out is remembered, and added to the next vector (error
feedback): nothing is lost, it is only sent later.

Cost: 8 bytes for each number sent (4 for its position), from every worker to every other: (P - 1) density d numbers and
positions. This is more than a dense sum of 2 d numbers if P density is above 1. Finding the largest is a selection over
all numbers. One vector of memory.

When it loses: With many workers (their positions differ, so the union grows), on fast networks, and at very small
densities. At these, numbers that are left out are sent very late: see the published warm-up of `dgc`.

Paper: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; with error feedback Stich,
Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018, Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, ends_of, joined
from quorate.codecs.selection import check_density, largest
from quorate.core.codec import Draw, Memory, Selection, Shapes


@register("top-k")
@dataclass(frozen=True, kw_only=True)
class TopK(Selection):
    """The largest numbers of each tensor, with their positions."""

    keeps_few: ClassVar[bool] = True

    density: float = 0.01
    """Share of the numbers that are sent, above 0 and at most 1."""

    def __post_init__(self) -> None:
        check_density(self.density)

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        numels = [math.prod(shape) for shape in shapes]
        places = [
            largest(x[begin:end].abs(), k) + begin
            for (begin, end), k in zip(ends_of(numels), self._counts(shapes), strict=True)
        ]
        where = torch.cat(places) if places else torch.empty(0, dtype=torch.int64, device=x.device)
        return joined(where.to(torch.int32), x.index_select(0, where).float()), memory

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        count = sum(self._counts(shapes))
        where, values = cut(code, (torch.int32, count), (torch.float32, count))
        into.index_add_(0, where, values.to(into.dtype))

    def wire_bytes(self, shapes: Shapes) -> int:
        return 8 * sum(self._counts(shapes))

    def contraction(self, shapes: Shapes) -> float | None:
        numels = [math.prod(shape) for shape in shapes]
        return min((k / n for k, n in zip(self._counts(shapes), numels, strict=True) if n), default=1.0)

    def _counts(self, shapes: Shapes) -> list[int]:
        numels = [math.prod(shape) for shape in shapes]
        return [min(n, max(1, math.floor(self.density * n))) for n in numels]
