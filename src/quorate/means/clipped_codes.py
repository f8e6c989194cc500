"""`ClippedCodes`: every worker's code goes to all, and decoded tensors longer than usual are shortened before the sum.

Idea: As `Coded`. All workers decode all codes, and compute the L2 norm of each worker's tensor. A tensor that is longer
than the lower median of these norms is shortened to it. So one worker whose update is out of proportion moves the sum
no further than usual. Tensors of zeros, of workers without an update, have no part in the median. All do the same
with the same codes, so all have the same bits.

Cost: As `Coded`, P vectors of a part in memory while it is decoded, and a pass over each.

When it loses: Where workers have unequal work: the longer updates of those that have made more steps are shortened.

Paper: none of its own; as in the public code of SparseLoCo (Sarfi et al., 2025, arXiv 2508.15706).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quorate.core.codec import Shapes
from quorate.means.coded import Coded


class ClippedCodes(Coded):
    """A reducer that sends every code to all workers, and shortens decoded tensors to the median of their norms."""

    def _add_up(self, part: int, into: Tensor, codes: Sequence[Tensor], ranks: Sequence[int]) -> None:
        with self.spending("decode"):
            vectors = torch.zeros(len(codes), into.numel(), dtype=into.dtype, device=into.device)
            for vector, rank, code in zip(vectors, ranks, codes, strict=True):
                self._add_code(vector, code, self._shapes[part], self._draw(part, rank))
            clip_to_median_(vectors, self._shapes[part])
            into.copy_(vectors[0])
            for vector in vectors[1:]:
                into.add_(vector)


def clip_to_median_(vectors: Tensor, shapes: Shapes) -> None:
    """Shorten, in place, each tensor of each vector to the lower median of the norms of that tensor, zeros left out.

    Args:
        vectors: (workers, numbers), each row tensors of `shapes` end to end. A row with NaN keeps it.
    """
    for tensors in vectors.split([math.prod(shape) for shape in shapes], dim=1):
        norms = torch.linalg.vector_norm(tensors, dim=1)
        median = norms.where(norms > 0, math.nan).nanmedian()
        tensors.mul_(torch.where(norms > median, median / norms, 1.0).unsqueeze(1))
