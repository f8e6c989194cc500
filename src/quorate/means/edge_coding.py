"""Coding of the vectors that are sent to neighbours, without memory.

Parts that are not coded travel unchanged. A part with a number that is not finite is not encoded: its code is empty,
and is decoded as NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from quorate.core.codec import Codec, Draw, shapes_in
from quorate.core.vectors import Flat, Layout, digest_of
from quorate.means.remembering import is_finite

_SIDE = 256
"""Side of the square matrix on which the codec is tried."""
_SMALL = 1e-3
"""Size of the numbers of that matrix: about that of differences between steps."""


class EdgeCoding:
    """Implements `core.neighbours.EdgeCodec` with a codec that has no memories."""

    def __init__(self, codec: Codec, seed: int) -> None:
        self._codec, self._seed = codec, seed

    @property
    def is_biased(self) -> bool:
        """Whether the codec is biased."""
        return self._codec.is_biased

    @property
    def votes(self) -> bool:
        """Whether the sum of codes is a vote: see `Codec.votes`."""
        return self._codec.votes

    @cached_property
    def left_out(self) -> float:
        """The squared error of the code of one matrix over its squared norm; the same on every worker."""
        shapes = ((_SIDE, _SIDE),)
        x = _SMALL * torch.randn(_SIDE * _SIDE, generator=torch.Generator().manual_seed(1))
        code, _ = self._codec.encode(x, shapes, {}, Draw())
        error = self._codec.decode(code, shapes, Draw()).sub_(x)
        return float(error.square().sum() / x.square().sum())

    def encode(self, x: Flat, round: int, rank: int) -> list[Tensor]:
        """Return one tensor for each part: its code, or the part itself."""
        shapes = shapes_in(x.layout)
        return [
            self._code_of(part, shapes[number], self._draw(x.layout, round, rank, number)) if number in shapes else part
            for number, part in enumerate(x.parts)
        ]

    def decode(self, tensors: Sequence[Tensor], layout: Layout, round: int, rank: int) -> Flat:
        """Return the vector that `rank` has encoded for `round`, on the devices of `layout`; coded parts are new
        memory."""
        shapes, parts = shapes_in(layout), []
        for number, (part, x) in enumerate(zip(layout.parts, tensors, strict=True)):
            received = x.to(part.device)
            if number not in shapes:
                parts.append(received)
            elif part.numel and not received.numel():
                parts.append(torch.full((part.numel,), math.nan, dtype=part.dtype, device=part.device))
            else:
                draw = self._draw(layout, round, rank, number)
                parts.append(self._codec.decode(received, shapes[number], draw).to(part.dtype))
        return Flat(parts, layout)

    def _code_of(self, x: Tensor, shapes: tuple[tuple[int, ...], ...], draw: Draw) -> Tensor:
        return self._codec.encode(x, shapes, {}, draw)[0] if is_finite(x) else x.new_empty(0, dtype=torch.uint8)

    def _draw(self, layout: Layout, round: int, rank: int, part: int) -> Draw:
        """Return the draw of one part; other layouts (those of other optimizers) have other random numbers."""
        return Draw(seed=self._seed + int(digest_of(layout)[:8], 16), round=round, rank=rank, part=part)
