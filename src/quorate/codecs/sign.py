"""Sign: one bit per number, and one scale for each tensor.

Idea: Each number becomes the scale of its tensor with its own sign; 0 counts as positive, because one bit has no third
value. The scale is the mean absolute value; what is left out is remembered and added to the next vector. With
`scale="none"` the scale is 1, and the result is the majority vote of the workers that have a gradient. It is the sign
of the sum of their signs, and 1 for a tie.

Cost: 1 bit per number and 4 bytes per tensor (none with `scale="none"`); each worker's code goes to every other. One
vector of memory. With the mean absolute value a code keeps at least 1 / d of the squared norm of d numbers, and about
64 % if they are normally distributed.

When it loses: With many workers: from about P = 64 on the codes of all are as large as a dense sum. The scale "l2", the
root mean square, is no contraction: if few numbers are large, the part left out is larger than the vector was. Votes
without a scale need a small, falling learning rate, and parameters whose gradient is always 0 drift.

Paper: Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other gradient compression schemes",
ICML 2019, Algorithm 1; votes: Bernstein, Wang, Azizzadenesheli and Anandkumar, "signSGD: compressed optimisation for
non-convex problems", ICML 2018; "l2" as in Tang et al., "1-bit Adam", ICML 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, ends_of, joined, pack, packed_bytes, pieces, positive, signs
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of


@register("sign")
@dataclass(frozen=True, kw_only=True)
class Sign(Codec):
    """The sign of each number, and one scale for each tensor."""

    scale: Literal["l1", "l2", "none"] = "l1"
    """Scale: the mean of absolute values, the root mean square, or 1 (majority votes)."""

    @property
    def needs_feedback(self) -> bool:
        """Whether numbers are no votes, whose sizes do not approximate those of the vector."""
        return self.scale != "none"

    @property
    def votes(self) -> bool:
        return self.scale == "none"

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        x = x.float()
        packed = pack(positive(x), 1)
        if self.scale == "none":
            return packed, memory
        scales = [self._scale_of(x[begin:end]) for begin, end in ends_of([math.prod(shape) for shape in shapes])]
        return joined(torch.stack(scales) if scales else x.new_empty(0), packed), memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        numel, count = numel_of(shapes), 0 if self.scale == "none" else len(shapes)
        scales, packed = cut(code, (torch.float32, count), (torch.uint8, packed_bytes(numel, 1)))
        decoded = signs(packed, numel)
        if count:
            for (begin, end), scale in zip(ends_of([math.prod(shape) for shape in shapes]), scales, strict=True):
                decoded[begin:end].mul_(scale)
        return decoded

    def wire_bytes(self, shapes: Shapes) -> int:
        return packed_bytes(numel_of(shapes), 1) + (0 if self.scale == "none" else 4 * len(shapes))

    def contraction(self, shapes: Shapes) -> float | None:
        return 1 / max(1, *map(math.prod, shapes)) if self.scale == "l1" and shapes else None

    def _scale_of(self, x: Tensor) -> Tensor:
        if not x.numel():
            return x.new_zeros(())
        if self.scale == "l1":
            return torch.stack([x[piece].abs().sum() for piece in pieces(x.numel(), x.device)]).sum() / x.numel()
        norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
        return (norm / math.sqrt(x.numel())).float()
