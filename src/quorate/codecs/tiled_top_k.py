"""Tiled top-k: the largest numbers of each square tile of a matrix, in two bits and a place in the tile.

Idea: Each tensor is cut into tiles of 64 x 64 numbers. Along a dimension that 64 does not divide, a tile has the
largest divisor up to 64. A tensor of more than two dimensions is a matrix of its first dimension and the others. The
`keep` numbers of largest absolute value of each full tile are sent, and the same share of smaller tiles, but at least
one. A value has two bits, for one of four bins over six standard deviations of all values of the tensor that are sent.
With s the mean of these values, and w = 6 sigma / 4:

    bin = clamp(round((value - s) / w + 2), 0, 3)

It is decoded as the mean of the values in its bin. What is left out and the rounding error are remembered, and added to
the next vector (error feedback).

Cost: 12 + 2 bits for each number sent and 16 bytes per tensor: with 64 of 4096 sent, 0.219 bits per number. Each code
is decoded by itself. A selection in each tile, and two copies of a tensor in the order of its tiles. One vector of
memory.

When it loses: As `top-k`. In tensors of which few numbers are sent: two values of one length and opposite signs are in
one bin, whose mean is 0. They are sent when the error memory has made them unequal. Along dimensions that have no
divisor near 64, tiles are thin, and numbers far apart do not compete.

Paper: Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025 (arXiv 2508.15706), after public
code: tiles, bins, and their means. There, smaller tiles send 64 numbers as well, and vectors are cut into chunks of
which all numbers are sent; the share of smaller tiles is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import cut, joined, pack, packed_bytes, unpack, width_for
from quorate.core.codec import Draw, Memory, Selection, Shapes
from quorate.core.errors import ConfigurationError

_BINS, _DEVIATIONS, _BITS = 4, 6.0, 2
_LONGEST = 256
"""The longest side of a tile, whose places have 16 bits."""


@dataclass(frozen=True)
class Tiles:
    """The tiles of one tensor: `rows` x `columns` of them, each of `height` x `width` numbers, `keep` of which are
    sent."""

    rows: int
    columns: int
    height: int
    width: int
    keep: int

    @property
    def numel(self) -> int:
        """The number of numbers of a tile."""
        return self.height * self.width

    @property
    def count(self) -> int:
        """The number of values that are sent."""
        return self.rows * self.columns * self.keep

    @property
    def place_bits(self) -> int:
        """The bits of a place in a tile."""
        return width_for(self.numel)

    @property
    def nbytes(self) -> int:
        """The bytes of the code of the tensor."""
        return 4 * _BINS + packed_bytes(self.count, _BITS) + packed_bytes(self.count, self.place_bits)

    def of(self, x: Tensor) -> Tensor:
        """Return a copy of the tensor `x`, laid end to end, with one tile in each row."""
        tiles = x.view(self.rows, self.height, self.columns, self.width).transpose(1, 2)
        return tiles.reshape(self.rows * self.columns, self.numel)

    def back(self, tiles: Tensor) -> Tensor:
        """Return the tensor of a result of `of`, laid end to end."""
        return tiles.view(self.rows, self.columns, self.height, self.width).transpose(1, 2).reshape(-1)


@register("tiled-top-k")
@dataclass(frozen=True, kw_only=True)
class TiledTopK(Selection):
    """The largest numbers of each tile of a matrix, in two bits and a place in the tile."""

    keeps_few: ClassVar[bool] = True

    tile: int = 64
    """Longest side of a tile."""
    keep: int = 64
    """How many numbers of each full tile are sent."""
    bits: Literal[2, 32] = 2
    """Number of bits per value; 32: values are unchanged."""

    def __post_init__(self) -> None:
        if not 1 <= self.tile <= _LONGEST:
            raise ConfigurationError(f"tile is {self.tile}; it must be a length from 1 to {_LONGEST}")
        if not 1 <= self.keep <= self.tile**2:
            raise ConfigurationError(
                f"keep is {self.keep}; it must be a number of numbers from 1 to {self.tile**2}, those of a tile"
            )

    def _tiles(self, shapes: Shapes) -> Iterator[Tiles]:
        for shape in shapes:
            rows = shape[0] if len(shape) > 1 else 1
            columns = math.prod(shape) // rows if rows else 0
            height, width = _divisor(rows, self.tile), _divisor(columns, self.tile)
            keep = max(1, self.keep * height * width // self.tile**2)
            yield Tiles(rows // height, columns // width, height, width, keep)

    def _bytes_of(self, tiles: Tiles) -> int:
        if not tiles.count:
            return 0
        return tiles.nbytes if self.bits == 2 else 4 * tiles.count + packed_bytes(tiles.count, tiles.place_bits)

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        codes, begin = [torch.empty(0, dtype=torch.uint8, device=x.device)], 0
        for tiles in self._tiles(shapes):
            end = begin + tiles.rows * tiles.columns * tiles.numel
            if tiles.count:
                codes.append(self._encoded(x[begin:end], tiles))
            begin = end
        return torch.cat(codes), memory

    def _encoded(self, x: Tensor, tiles: Tiles) -> Tensor:
        rows = tiles.of(x).float()
        where = rows.abs().topk(tiles.keep, dim=1, sorted=False).indices
        values, places = rows.gather(1, where).view(-1), pack(where.view(-1), tiles.place_bits)
        if self.bits == 32:
            return joined(values, places)
        bins, means = _binned(values)
        return joined(means, pack(bins, _BITS), places)

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        begin = at = 0
        for tiles in self._tiles(shapes):
            end, length = begin + tiles.rows * tiles.columns * tiles.numel, self._bytes_of(tiles)
            if tiles.count:
                into[begin:end] += self._decoded(code[at : at + length], tiles).to(into.dtype)
            begin, at = end, at + length

    def _decoded(self, code: Tensor, tiles: Tiles) -> Tensor:
        of_places = torch.uint8, packed_bytes(tiles.count, tiles.place_bits)
        if self.bits == 32:
            values, places = cut(code, (torch.float32, tiles.count), of_places)
        else:
            kinds = (torch.float32, _BINS), (torch.uint8, packed_bytes(tiles.count, _BITS)), of_places
            means, bins, places = cut(code, *kinds)
            values = means[unpack(bins, _BITS, tiles.count).long()]
        where = unpack(places, tiles.place_bits, tiles.count).long().view(-1, tiles.keep)
        rows = torch.zeros(len(where), tiles.numel, device=code.device)
        return tiles.back(rows.scatter_(1, where, values.view(-1, tiles.keep)))

    def wire_bytes(self, shapes: Shapes) -> int:
        return sum(map(self._bytes_of, self._tiles(shapes)))

    def contraction(self, shapes: Shapes) -> float | None:
        """Only unchanged values have a bound: bins may have a mean of 0."""
        if self.bits == 2:
            return None
        return min((tiles.keep / tiles.numel for tiles in self._tiles(shapes) if tiles.count), default=1.0)


def _divisor(length: int, most: int) -> int:
    """Return the largest divisor of `length` up to `most`; 1 of 0."""
    return next((d for d in range(min(length, most), 0, -1) if length % d == 0), 1)


def _binned(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bin of each value, of four over six standard deviations, and the mean of the values in each bin."""
    deviation = values.std() if len(values) > 1 else values.new_zeros(())
    width = torch.where(deviation > 0, deviation * (_DEVIATIONS / _BINS), 1.0)
    bins = ((values - values.mean()) / width + _BINS / 2).round_().clamp_(0, _BINS - 1).long()
    counts = torch.zeros(_BINS, device=values.device).scatter_add_(0, bins, torch.ones_like(values))
    sums = torch.zeros(_BINS, device=values.device).scatter_add_(0, bins, values)
    return bins, sums / counts.clamp_(min=1.0)
