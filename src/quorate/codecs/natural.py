"""Natural compression: each number is rounded to one of the two nearest powers of two, at random and unbiased.

Idea: A float32 is a sign, a power of two and a mantissa. The fraction of the mantissa is the probability of rounding up
to the next power of two, and is not sent. So 9 bits cover the whole range of float32, with no scale, no blocks and
nothing to remember.

Cost: 9 bits per number (one byte for the power, the signs packed). Each code is decoded by itself. The expected squared
error is at most 1/8 of the squared norm. Drawing a random number for each takes most of the time.

When it loses: Against `blocks` or `fp8` with 8 bits, whose error is far smaller where numbers are of similar size.
Above 2^127 numbers are rounded down, because there is no upper power.

Paper: Horváth, Ho, Horváth, Sahu, Canini and Richtárik, "Natural compression for distributed deep learning", MSML 2022
(arXiv 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, joined, pack, packed_bytes, pieces, signs
from quorate.codecs.rounding import drawn_bits
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of

_MANTISSA = 23
"""Bits of a float32 below its exponent."""
_LARGEST = 254
"""The exponent, as it is written, of the largest finite power of two."""


@register("natural")
@dataclass(frozen=True, kw_only=True)
class Natural(Codec):
    """Random rounding to powers of two, in 9 bits; unbiased."""

    is_biased: ClassVar[bool] = False

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        written, draws = x.float().view(torch.int32), draw.generator(x.device)
        exponents = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        for piece in pieces(x.numel(), x.device):
            # A carry out of the mantissa is the next power: as likely as the mantissa is large.
            sizes = drawn_bits(piece.stop - piece.start, _MANTISSA, draws).add_(written[piece] & 0x7FFFFFFF)
            exponents[piece] = sizes.bitwise_right_shift_(_MANTISSA).clamp_(max=_LARGEST)
        return joined(exponents, pack(written >= 0, 1)), memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        numel = numel_of(shapes)
        exponents, packed = cut(code, (torch.uint8, numel), (torch.uint8, packed_bytes(numel, 1)))
        decoded = signs(packed, numel)
        for piece in pieces(numel, code.device):
            decoded[piece] *= exponents[piece].to(torch.int32).bitwise_left_shift_(_MANTISSA).view(torch.float32)
        return decoded

    def wire_bytes(self, shapes: Shapes) -> int:
        numel = numel_of(shapes)
        return numel + packed_bytes(numel, 1)

    def contraction(self, shapes: Shapes) -> float | None:
        return 7 / 8
