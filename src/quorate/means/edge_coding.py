"""What a codec makes of the vectors that are given to neighbours; nothing is remembered here.

Parts that are not coded travel as they are. A part with a number that is not finite is not encoded: its code says so,
and is read as NaN.
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
"""Of the square matrix that is tried."""
_SMALL = 1e-3
"""The size of its numbers: of differences between steps, about."""


class EdgeCoding:
    """Implements `core.neighbours.EdgeCodec` with a codec that has no memories."""

    def __init__(self, codec: Codec, seed: int) -> None:
        self._codec, self._seed = codec, seed

    @property
    def is_biased(self) -> bool:
        """As the codec is."""
        return self._codec.is_biased

    @property
    def votes(self) -> bool:
        """Whether the sum of codes is a vote, see `Codec.votes`."""
        return self._codec.votes

    @cached_property
    def left_out(self) -> float:
        """Tried on one matrix, the same on every worker."""
        shapes = ((_SIDE, _SIDE),)
        x = _SMALL * torch.randn(_SIDE * _SIDE, generator=torch.Generator().manual_seed(1))
        code, _ = self._codec.encode(x, shapes, {}, Draw())
        error = self._codec.decode(code, shapes, Draw()).sub_(x)
        return float(error.square().sum() / x.square().sum())

    def encode(self, x: Flat, round: int, rank: int) -> list[Tensor]:
        """One tensor for each part: its code, or the part itself."""
        shapes = shapes_in(x.layout)
        return [
            self._code_of(part, shapes[number], self._draw(x.layout, round, rank, number)) if number in shapes else part
            for number, part in enumerate(x.parts)
        ]

    def decode(self, tensors: Sequence[Tensor], layout: Layout, round: int, rank: int) -> Flat:
        """What `rank` has encoded for that round, on the devices of `layout`; coded parts are new memory."""
        shapes, found = shapes_in(layout), []
        for number, (part, x) in enumerate(zip(layout.parts, tensors, strict=True)):
            there = x.to(part.device)
            if number not in shapes:
                found.append(there)
            elif part.numel and not there.numel():
                found.append(torch.full((part.numel,), math.nan, dtype=part.dtype, device=part.device))
            else:
                draw = self._draw(layout, round, rank, number)
                found.append(self._codec.decode(there, shapes[number], draw).to(part.dtype))
        return Flat(found, layout)

    def _code_of(self, x: Tensor, shapes: tuple[tuple[int, ...], ...], draw: Draw) -> Tensor:
        return self._codec.encode(x, shapes, {}, draw)[0] if is_finite(x) else x.new_empty(0, dtype=torch.uint8)

    def _draw(self, layout: Layout, round: int, rank: int, part: int) -> Draw:
        """Of vectors laid out otherwise (another optimizer's) there are other numbers."""
        return Draw(seed=self._seed + int(digest_of(layout)[:8], 16), round=round, rank=rank, part=part)
