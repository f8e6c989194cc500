"""TernGrad: each number becomes -1, 0 or 1 times its tensor's largest, at random and unbiased.

Idea: Numbers beyond 2.5 standard deviations of their tensor are clipped to that. Then each number becomes the largest
absolute value with its own sign, or 0, with the probability that makes the code unbiased. The deviation is measured
from 0, so that a tensor of nearly equal numbers is not clipped to nothing. The code is unbiased for the clipped vector:
what clipping removes is lost, as in gradient clipping, and is not remembered.

Cost: 2 bits per number and 4 bytes per tensor. Each code is decoded by itself. The expected squared error is as large
as the squared norm for normally distributed numbers, larger for others, and unbounded without clipping.

When it loses: Where noise limits training: large batches, late epochs. Its authors keep the last layer and biases
dense, and lost up to two points with GoogLeNet.

Paper: Wen, Xu, Yan, Wu, Wang, Chen and Li, "TernGrad: ternary gradients to reduce communication in distributed deep
learning", NeurIPS 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, ends_of, joined, pack, packed_bytes, pieces, unpack
from quorate.codecs.rounding import SMALLEST, stochastic
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of
from quorate.core.errors import ConfigurationError


@register("terngrad")
@dataclass(frozen=True, kw_only=True)
class TernGrad(Codec):
    """Each number as -1, 0 or 1 times the largest of its tensor; unbiased."""

    keeps_few: ClassVar[bool] = True

    is_biased: ClassVar[bool] = False  # but for the clipped part, which is lost

    clip: float = 2.5
    """Number of standard deviations beyond which numbers are clipped; 0: no clipping."""

    def __post_init__(self) -> None:
        if not (self.clip == 0 or self.clip >= 1):
            raise ConfigurationError(
                f"clip is {self.clip}; it must be a number of standard deviations (at least 1), or 0"
            )

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        x, draws = x.float(), draw.generator(x.device)
        scales, whole = x.new_zeros(len(shapes)), torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        for place, (begin, end) in enumerate(ends_of([math.prod(shape) for shape in shapes])):
            if begin < end:
                scales[place] = self.scale_of(x[begin:end])
                whole[begin:end] = stochastic(x[begin:end].unsqueeze(0), 1 / scales[place : place + 1], 1, draws)[0]
        return joined(scales, pack(whole, 2)), memory

    def scale_of(self, x: Tensor) -> Tensor:
        """Return the largest absolute value of a tensor, at most `clip` standard deviations (clipping)."""
        largest = torch.stack([x[piece].abs().amax() for piece in pieces(x.numel(), x.device)]).amax()
        if self.clip:
            largest = torch.minimum(largest, torch.linalg.vector_norm(x) * (self.clip / math.sqrt(x.numel())))
        return largest.clamp(min=SMALLEST)

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        numel = numel_of(shapes)
        scales, packed = cut(code, (torch.float32, len(shapes)), (torch.uint8, packed_bytes(numel, 2)))
        decoded = unpack(packed, 2, numel).float().sub_(1)
        for (begin, end), scale in zip(ends_of([math.prod(shape) for shape in shapes]), scales, strict=True):
            decoded[begin:end].mul_(scale)
        return decoded

    def wire_bytes(self, shapes: Shapes) -> int:
        return 4 * len(shapes) + packed_bytes(numel_of(shapes), 2)
