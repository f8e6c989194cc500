"""One bit: the sign of each number, and two means for each column of a matrix.

Idea: A number tells only whether it is below 0. Receivers put the mean of all those of its column that are below 0 in
its place, or the mean of the others: two numbers a column, so that the column's sum is right. What was left out is
remembered and added to the next vector. A tensor is a matrix of its first dimension by all others; one of a single
dimension is one column. A class that is empty has the mean 0.

Cost: 1 bit a number and 8 bytes a column; each worker's code travels to every other. One vector of memory. The means
hold at least 1 / d of the squared norm of a column of d numbers, for about 64 % where they are normally distributed.

When it loses: With matrices of few rows, where the means are as large as the bits: `by="row"` has two means for each
row instead. With many workers, as `sign`.

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
from quorate.codecs.bits import pack, packed_bytes, unpack
from quorate.codecs.packed import cut, ends_of, joined
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of


@register("one-bit")
@dataclass(frozen=True, kw_only=True)
class OneBit(Codec):
    """The sign of each number, and the means of both kinds in its column."""

    by: Literal["column", "row"] = "column"
    """What has two means of its own: a column (published), or a row, which is all weights of one output."""

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        x, buffer = x.float(), torch.empty(x.shape, device=x.device)  # one for all: new memory takes as long as a sum
        below = self._sums(torch.clamp(x, max=0, out=buffer), shapes)
        above = self._sums(torch.clamp(x, min=0, out=buffer), shapes)
        is_positive = torch.ge(x, 0, out=buffer)
        counts, means = self._sums(is_positive, shapes), list[Tensor]()
        for (_, matrix), *found in zip(self._matrices(shapes), below, above, counts, strict=True):
            lower, upper, count = found
            others = matrix[self._along] - count
            means += [lower / others.clamp_(min=1), upper / count.clamp_(min=1)]
        return joined(torch.cat(means) if means else x.new_empty(0), pack(is_positive.bool(), 1)), memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        numel, counts = numel_of(shapes), self._counts(shapes)
        means, packed = cut(code, (torch.float32, 2 * sum(counts)), (torch.uint8, packed_bytes(numel, 1)))
        is_positive = unpack(packed, 1, numel).float()
        found = torch.empty(numel, device=code.device)
        for ((begin, end), (rows, columns)), (first, last) in zip(self._matrices(shapes), ends_of(counts), strict=True):
            below, above = means[2 * first : 2 * last].view(2, last - first).unbind()
            if self.by == "row":
                below, above = below.unsqueeze(1), above.unsqueeze(1)
            torch.lerp(
                below, above, is_positive[begin:end].view(rows, columns), out=found[begin:end].view(rows, columns)
            )
        return found

    def wire_bytes(self, shapes: Shapes) -> int:
        return 8 * sum(self._counts(shapes)) + packed_bytes(numel_of(shapes), 1)

    def contraction(self, shapes: Shapes) -> float | None:
        return 1 / max((matrix[self._along] for _, matrix in self._matrices(shapes) if all(matrix)), default=1)

    @property
    def _along(self) -> int:
        """The dimension of which a mean is taken."""
        return 0 if self.by == "column" else 1

    def _matrices(self, shapes: Shapes) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Where each tensor lies, and its rows and columns."""
        numels = [math.prod(shape) for shape in shapes]
        for ends, shape, numel in zip(ends_of(numels), shapes, numels, strict=True):
            if len(shape) > 1:
                yield ends, (shape[0], math.prod(shape[1:]))
            else:
                yield ends, (numel, 1) if self.by == "column" else (1, numel)

    def _counts(self, shapes: Shapes) -> list[int]:
        return [columns if self.by == "column" else rows for _, (rows, columns) in self._matrices(shapes)]

    def _sums(self, x: Tensor, shapes: Shapes) -> list[Tensor]:
        """Of each tensor's columns."""
        return [x[begin:end].view(matrix).sum(self._along) for (begin, end), matrix in self._matrices(shapes)]
