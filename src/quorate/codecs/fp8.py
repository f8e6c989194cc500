"""fp8: floating-point numbers of 8 bits, and one scale for each block.

Idea: The largest absolute value of a block becomes the largest number of the format, so nothing overflows. Each number
is rounded to the nearest one of e4m3 or e5m2. The format e4m3 (4 bits of exponent, 3 of mantissa) is within 6 %, down
to a 229,000th of the block's largest. The format e5m2 is within 12 %, down to a 3.8-billionth. Small numbers keep their
digits, which 8-bit integers lose. The rounding error is remembered and added to the next vector.

Cost: 8 bits per number and 4 bytes per block: 8.125 bits by default. Each code is decoded by itself. One vector of
memory.

When it loses: Where the numbers of a block have similar sizes: 8-bit integers are then more accurate (`blocks`).

Paper: Micikevicius et al., "FP8 formats for deep learning", 2022, table 1; for the communication of gradients Peng et
al., "FP8-LM: training FP8 large language models", 2023, section 2.1, there with one scale for each tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, joined, pieces
from quorate.codecs.rounding import block_count, check_block, in_blocks, largest_of_each, times_each
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of
from quorate.core.errors import ConfigurationError

_NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
"""Names of the formats in torch."""


@register("fp8")
@dataclass(frozen=True, kw_only=True)
class FP8(Codec):
    """Floating-point numbers of 8 bits, and a scale for each block."""

    format: Literal["e4m3", "e5m2"] = "e4m3"
    """8-bit format: e4m3 has more precision, e5m2 a wider range."""
    block: int = 256
    """How many numbers share one scale."""

    def __post_init__(self) -> None:
        check_block("block", self.block)
        if not hasattr(torch, _NAMES[self.format]):
            raise ConfigurationError(f"this torch has no {_NAMES[self.format]}; take the codec blocks")

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, _NAMES[self.format])
        return dtype

    @property
    def crosses_tensors(self) -> bool:
        return True

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        rows, most = in_blocks(x.float(), self.block), torch.finfo(self._dtype).max
        largest = largest_of_each(rows)
        # Beyond its largest number e4m3 has none and e5m2 is infinite; excess from rounding is rounded away again.
        small, factors = torch.empty(rows.shape, dtype=self._dtype, device=x.device), (most / largest).unsqueeze(1)
        for piece in pieces(len(rows), x.device, of=self.block):
            small[piece] = rows[piece] * factors[piece]
        return joined(largest / most, small.view(-1)[: x.numel()]), memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        numel = numel_of(shapes)
        scales, small = cut(code, (torch.float32, block_count(numel, self.block)), (torch.uint8, numel))
        decoded = torch.empty(numel, device=code.device)
        for piece in pieces(numel, code.device):
            decoded[piece] = self._as_float16(small[piece])
        return times_each(decoded, scales if self.format == "e5m2" else scales * 2.0**8, self.block)

    def _as_float16(self, small: Tensor) -> Tensor:
        wide = small.to(torch.int16).bitwise_left_shift_(8)
        if self.format == "e4m3":  # the exponent of a float16 has one bit more, and counts from 8 less
            wide = (wide & 0x7F00).bitwise_right_shift_(1).bitwise_or_(wide & -0x8000)
        return wide.view(torch.float16)  # of e5m2 it is the upper half

    def wire_bytes(self, shapes: Shapes) -> int:
        numel = numel_of(shapes)
        return 4 * block_count(numel, self.block) + numel

    def contraction(self, shapes: Shapes) -> float | None:
        about = torch.finfo(self._dtype)
        of_rounding = about.eps / 2  # of numbers from the smallest normal one on; below it, absolute
        of_smallest = about.smallest_normal * about.eps / 2 / about.max
        # Scales are rounded to float32, too.
        return 1 - (of_rounding**2 + self.block * of_smallest**2) * (1 + 1e-5) - 1e-12
