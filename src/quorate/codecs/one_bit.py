"""One bit: the sign of each number, and two means for each column of a matrix.

Idea: The code says only whether a number is below 0. Receivers replace the numbers of a column below 0 by their mean,
and the others by theirs: two means per column, so that the column's sum is right. What is left out is remembered and
added to the next vector. A tensor is a matrix of its first dimension by all others; one of a single dimension is one
column. The mean of an empty class is 0.

Cost: 1 bit per number and 8 bytes per column; each worker's code goes to every other. One vector of memory. The means
keep at least 1 / d of the squared norm of a column of d numbers, and about 64 % if they are normally distributed.

When it loses: With matrices of few rows, whose means are as large as the bits: `by="row"` has two means for each row
instead. With many workers, as `sign`.

Paper: Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its application to data-parallel distributed
training of speech DNNs", Interspeech 2014.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, ends_of, joined, pack, packed_bytes, pieces, positive, unpack
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of


@register("one-bit")
@dataclass(frozen=True, kw_only=True)
class OneBit(Codec):
    """The sign of each number, and the means of both kinds in its column."""

    by: Literal["column", "row"] = "column"
    """Which numbers share the two means: a column (as published), or a row, which has all weights of one output."""

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        x = x.float()
        means = [self._means(x[begin:end].view(matrix)) for (begin, end), matrix in self._matrices(shapes)]
        return joined(torch.cat(means) if means else x.new_empty(0), pack(positive(x), 1)), memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        numel, counts = numel_of(shapes), self._counts(shapes)
        means, packed = cut(code, (torch.float32, 2 * sum(counts)), (torch.uint8, packed_bytes(numel, 1)))
        decoded, bits = torch.empty(numel, device=code.device), unpack(packed, 1, numel)
        for ((begin, end), (rows, columns)), (first, last) in zip(self._matrices(shapes), ends_of(counts), strict=True):
            below, above = means[2 * first : 2 * last].view(2, -1, *([1] if self.by == "row" else [])).unbind()
            matrix, is_positive = decoded[begin:end].view(rows, columns), bits[begin:end].view(rows, columns)
            for piece in pieces(rows, code.device, of=columns):
                means_of = piece if self.by == "row" else slice(None)
                torch.lerp(below[means_of], above[means_of], is_positive[piece].float(), out=matrix[piece])
        return decoded

    def wire_bytes(self, shapes: Shapes) -> int:
        return 8 * sum(self._counts(shapes)) + packed_bytes(numel_of(shapes), 1)

    def contraction(self, shapes: Shapes) -> float | None:
        return 1 / max((matrix[self._along] for _, matrix in self._matrices(shapes) if all(matrix)), default=1)

    @property
    def _along(self) -> int:
        """The dimension over which means are taken."""
        return 0 if self.by == "column" else 1

    def _matrices(self, shapes: Shapes) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Yield ((begin, end), (rows, columns)) of each tensor."""
        numels = [math.prod(shape) for shape in shapes]
        for ends, shape, numel in zip(ends_of(numels), shapes, numels, strict=True):
            if len(shape) > 1:
                yield ends, (shape[0], math.prod(shape[1:]))
            else:
                yield ends, (numel, 1) if self.by == "column" else (1, numel)

    def _counts(self, shapes: Shapes) -> list[int]:
        return [columns if self.by == "column" else rows for _, (rows, columns) in self._matrices(shapes)]

    def _means(self, x: Tensor) -> Tensor:
        """Return the means of the numbers below 0 in each column, then of the others."""
        sums = list[Tensor]()
        for piece in pieces(len(x), x.device, of=x.shape[1]):
            block = x[piece]
            others = torch.ge(block, 0, out=torch.empty_like(block))  # as floats, which are added faster
            classes = (block.clamp(max=0), block.clamp(min=0), others)
            sums.append(torch.stack([numbers.sum(self._along) for numbers in classes]))
        if not sums:
            return x.new_zeros(2 * x.shape[1 - self._along])
        below, above, count = torch.stack(sums).sum(0) if self.by == "column" else torch.cat(sums, dim=1)
        return torch.cat([below / (x.shape[self._along] - count).clamp_(min=1), above / count.clamp_(min=1)])
