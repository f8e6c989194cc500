"""ATOMO: a few pairs of singular vectors of each matrix, drawn at random so that the code is unbiased.

Idea: A matrix is a sum of singular triplets. Each triplet is sent with its own probability and divided by it, so that
the expected value is the matrix. Larger singular values have larger probabilities, chosen for the smallest variance
that an expected number of `rank` triplets allows. They are proportional to the singular values; where that would exceed
1, a triplet is always sent, and the others share the rest. A tensor is a matrix of its first dimension by all others;
tensors of one dimension, and those for which `rank` triplets would be longer, are sent unchanged.

Cost: 4 (n + m) bytes for each triplet of an n by m matrix, `rank` of them on average, and 4 bytes for their number,
which differs from worker to worker. Each code is decoded by itself. A full singular value decomposition of each matrix,
which takes far longer than other codecs. The expected squared error is at most r / `rank` - 1 of the squared norm, with
r singular values.

When it loses: To PowerSGD, which needs no decomposition and adds codes during the exchange. Where all singular values
are similar.

Paper: Wang, Sievert, Liu, Charles, Papailiopoulos and Wright, "ATOMO: communication-efficient learning via atomic
sparsification", NeurIPS 2018, Algorithm 1 (the probabilities) and spectral-ATOMO.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, ends_of, joined
from quorate.core.codec import Draw, Memory, Selection, Shapes
from quorate.core.errors import ConfigurationError


def probabilities(sizes: Tensor, budget: int) -> Tensor:
    """Return the p that minimizes the sum of sizes² / p, where p is at most 1 and adds up to `budget`; `sizes` fall.

    The i largest have p = 1, for the smallest i for which none of the others, which share the rest in proportion, is
    above it.
    """
    sizes = sizes.double()
    left = budget - torch.arange(len(sizes), device=sizes.device)
    rest = sizes.flip(0).cumsum(0).flip(0)
    certain = left * sizes > rest
    first = certain.sum().clamp(max=max(0, len(sizes) - 1))
    shared = left[first] * sizes / rest[first].clamp(min=torch.finfo(torch.float64).tiny) if len(sizes) else sizes
    return torch.where(certain, 1.0, shared).clamp(max=1.0)


@register("atomo")
@dataclass(frozen=True, kw_only=True)
class Atomo(Selection):
    """A few singular triplets of each matrix; unbiased."""

    is_biased: ClassVar[bool] = False

    rank: int = 3
    """Mean number of singular triplets sent for each matrix."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigurationError(f"rank is {self.rank}; it must be a number of singular triplets (at least 1)")

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        x, draws = x.float(), draw.generator(x.device)
        matrices, dense = self._parts(shapes)
        counts, vectors = list[int](), list[Tensor]()
        for begin, end, rows, columns in matrices:
            left, sizes, right = torch.linalg.svd(x[begin:end].view(rows, columns), full_matrices=False)
            p = probabilities(sizes, self.rank)
            drawn = torch.rand(len(p), generator=draws, device=x.device, dtype=torch.float64) < p
            left, right, sizes = left.T[drawn], right[drawn], (sizes / p)[drawn]
            counts.append(len(left))
            vectors += [left, right * sizes.float().unsqueeze(1)]
        count = torch.tensor(counts, dtype=torch.int32, device=x.device)
        return joined(count, *vectors, *(x[begin:end] for begin, end in dense)), memory

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        matrices, dense = self._parts(shapes)
        counts = cut(code, (torch.int32, len(matrices)))[0].tolist()
        lengths = [n for count, (_, _, r, c) in zip(counts, matrices, strict=True) for n in (count * r, count * c)]
        lengths += [end - begin for begin, end in dense]
        pieces = iter(cut(code[4 * len(counts) :], *((torch.float32, n) for n in lengths)))
        for count, (begin, end, rows, columns) in zip(counts, matrices, strict=True):
            left, right = next(pieces).view(count, rows), next(pieces).view(count, columns)
            into[begin:end].view(rows, columns).addmm_(left.T.to(into.dtype), right.to(into.dtype))
        for begin, end in dense:
            into[begin:end].add_(next(pieces))

    def wire_bytes(self, shapes: Shapes) -> int | None:
        matrices, dense = self._parts(shapes)
        return None if matrices else 4 * sum(end - begin for begin, end in dense)

    def contraction(self, shapes: Shapes) -> float | None:
        most = max((min(rows, columns) for *_, rows, columns in self._parts(shapes)[0]), default=self.rank)
        return min(1.0, 2 - most / self.rank) if most < 2 * self.rank else None

    def _parts(self, shapes: Shapes) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int]]]:
        """Return (begin, end, rows, columns) of the matrices to decompose, and (begin, end) of the other tensors."""
        matrices, dense = [], []
        for shape, (begin, end) in zip(shapes, ends_of([math.prod(shape) for shape in shapes]), strict=True):
            rows = shape[0] if len(shape) > 1 else 1
            columns = math.prod(shape[1:])
            if len(shape) > 1 and self.rank * (rows + columns) < rows * columns:
                matrices.append((begin, end, rows, columns))
            else:
                dense.append((begin, end))
        return matrices, dense
