"""Half: numbers of 16 bits in place of 32.

Idea: Each number is rounded to the nearest one of bfloat16 or float16. Of these, bfloat16 has 8 bits of exponent, like
float32: no overflow, three digits. The other, float16, has 5 bits of exponent: infinite above 65,504, zero below 6e-8,
four digits. Sums are formed in float32 on each host, and rounded once more for each host to which they are sent.

Cost: Half of the bytes; two passes over the vector. No memory.

When it loses: Where steps do not wait for the network. float16 where gradients leave its range: a GradScaler or
`on_nonfinite` finds infinite numbers, as in any gradient.

Paper: Micikevicius et al., "Mixed precision training", ICLR 2018 (float16); Kalamkar et al., "A study of BFLOAT16 for
deep learning training", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import pieces
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@register("half")
@dataclass(frozen=True, kw_only=True)
class Half(Codec):
    """Numbers of 16 bits in place of 32."""

    is_linear: ClassVar[bool] = True
    is_biased: ClassVar[bool] = False  # rounded to the nearest: no error that adds up in one direction

    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """Type of the numbers that are sent."""

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        return x.to(_DTYPES[self.dtype]), memory

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        return code.float()

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        for here in pieces(into.numel(), into.device):
            into[here].add_(code[here])

    def wire_bytes(self, shapes: Shapes) -> int:
        return 2 * numel_of(shapes)

    def contraction(self, shapes: Shapes) -> float | None:
        return 1 - 2.0**-18 if self.dtype == "bfloat16" else None
