"""int8, int4 and int2 by blocks: integers, and one scale for each block.

Idea: The largest absolute value of a block becomes the largest integer L = 2^(bits - 1) - 1. 0 stays 0, and the other
numbers are rounded to the nearest integer on the same scale. The rounding error is remembered and added to the next
vector; with `rounding="stochastic"` the code is unbiased instead, and nothing is remembered.

Cost: `bits` bits per number and 4 bytes per block: 8.125 bits by default. Each code is decoded by itself. One vector of
memory with `rounding="nearest"`. With d numbers in a block and nearest rounding, the squared error is at most (d - 1) /
(4 L² + d - 1) of the squared norm.

When it loses: Where one number of a block is far larger than the others: with few bits these all become 0; use smaller
blocks.

Paper: Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016 (its linear quantization); blocks as
in Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit optimizers via block-wise quantization", ICLR 2022, section 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from quorate.codecs import register
from quorate.codecs.rounding import (
    check_block,
    coded,
    coded_bytes,
    in_blocks,
    largest_of_each,
    nearest,
    read,
    stochastic,
)
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of


@register("blocks")
@dataclass(frozen=True, kw_only=True)
class Blocks(Codec):
    """Integers of 8, 4 or 2 bits (int8, int4, int2), and a scale for each block."""

    bits: Literal[2, 4, 8] = 8
    """Bits per number."""
    block: int = 256
    """How many numbers share one scale."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """Rounding to the nearest integer, or random and unbiased."""

    def __post_init__(self) -> None:
        check_block("block", self.block)

    @property
    def is_biased(self) -> bool:  # type: ignore[override]  # as the setting says
        """Whether numbers are rounded to the nearest integer."""
        return self.rounding == "nearest"

    @property
    def _levels(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    @property
    def crosses_tensors(self) -> bool:
        return True

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        rows = in_blocks(x.float(), self.block)
        largest = largest_of_each(rows)
        factors = self._levels / largest
        if self.rounding == "nearest":
            whole = nearest(rows, factors, self._levels)
        else:
            whole = stochastic(rows, factors, self._levels, draw.generator(x.device))
        return coded(largest / self._levels, whole, self._levels, x.numel()), memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        return read(code, self._levels, numel_of(shapes), self.block)

    def wire_bytes(self, shapes: Shapes) -> int:
        return coded_bytes(self._levels, numel_of(shapes), self.block)

    def contraction(self, shapes: Shapes) -> float | None:
        d, squared = min(self.block, numel_of(shapes)), 4.0 * self._levels**2
        if self.rounding == "nearest":
            return squared / (squared + d - 1) if d else 1.0
        variance = min(d / squared, math.sqrt(d) / self._levels)
        return 1 - variance if variance < 1 else None
