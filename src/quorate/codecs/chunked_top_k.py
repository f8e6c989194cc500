"""Chunked top-k: the largest numbers of each chunk, as a few magnitudes and a position in the chunk.

Idea: A vector is cut into chunks of 4096 numbers. The `keep` numbers of largest absolute value in each chunk are sent:
their positions in 12 bits, and their values in two, a sign and one of two magnitudes. The range from the smallest to
the largest sent is divided into two cells of equal width, and the magnitude of a cell is the mean of its numbers. What
is left out and the rounding error are remembered, and added to the next vector (error feedback).

Cost: 12 + 2 bits for each number sent and 8 bytes per chunk: with 64 of 4096 sent, 0.23 bits per number, 15 for each
number sent. Each code is decoded by itself. A selection in each chunk, the same work for all chunks. One vector of
memory. A shorter last chunk sends the same share, and at least one number.

When it loses: As `top-k`. Where large numbers lie close together: chunks with few of them send as many as others.

Paper: chunks, their size, and two bits are those of Sarfi et al., "Communication efficient LLM pre-training with
SparseLoCo", 2025 (arXiv 2508.15706), after its abstract and public descriptions, which do not specify the rounding: the
two magnitudes are ours. The paper cuts each tensor into chunks; here the whole vector is cut, across tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from quorate.codecs import register
from quorate.codecs.packed import WIDEST, cut, joined, pack, packed_bytes, pieces, unpack, width_for
from quorate.codecs.rounding import SMALLEST, block_count
from quorate.core.codec import Draw, Memory, Selection, Shapes, numel_of
from quorate.core.errors import ConfigurationError


@register("chunked-top-k")
@dataclass(frozen=True, kw_only=True)
class ChunkedTopK(Selection):
    """The largest numbers of each chunk, as a few magnitudes and a position in the chunk."""

    keeps_few: ClassVar[bool] = True

    chunk: int = 4096
    """Length of a chunk."""
    keep: int = 64
    """How many numbers of each chunk are sent."""
    bits: Literal[1, 2, 4, 32] = 2
    """Number of bits per value, including its sign; 32: values are unchanged."""

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= 1 << WIDEST:
            raise ConfigurationError(f"chunk is {self.chunk}; it must be a number of numbers from 1 to {1 << WIDEST}")
        if not 1 <= self.keep <= self.chunk:
            raise ConfigurationError(
                f"keep is {self.keep}; it must be a number of numbers from 1 to {self.chunk}, the chunk"
            )

    @property
    def _sizes(self) -> int:
        """Number of magnitudes of a chunk; 0 where values are sent unchanged."""
        return 0 if self.bits == 32 else 1 << (self.bits - 1)

    def _cuts(self, numel: int) -> list[tuple[int, int, int]]:
        """Return (number, length, numbers sent of each) of the full chunks, and of the shorter one at the end."""
        rows, length = divmod(numel, self.chunk)
        cuts = [(rows, self.chunk, self.keep)] if rows else []
        return [*cuts, (1, length, max(1, self.keep * length // self.chunk))] if length else cuts

    def _count(self, numel: int) -> int:
        return sum(rows * keep for rows, _, keep in self._cuts(numel))

    @property
    def crosses_tensors(self) -> bool:
        return True

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        places, values, sizes, begin = list[Tensor](), list[Tensor](), list[Tensor](), 0
        for rows, length, keep in self._cuts(x.numel()):
            chunks = x[begin : begin + rows * length].view(rows, length)
            for piece in pieces(rows, x.device, of=length):
                numbers_of_piece = chunks[piece].float()
                where = numbers_of_piece.abs().topk(keep, dim=1, sorted=False).indices
                kept = numbers_of_piece.gather(1, where)
                places.append(where.view(-1))
                if self._sizes:
                    numbers, magnitudes = _rounded(kept, self._sizes)
                    values.append(numbers.view(-1))
                    sizes.append(magnitudes.view(-1))
                else:
                    sizes.append(kept.view(-1))
            begin += rows * length
        packed = pack(_joined(places, x, torch.int64), width_for(self.chunk))
        if not self._sizes:
            return joined(_joined(sizes, x, torch.float32), packed), memory
        signs = pack(_joined(values, x, torch.int64), self.bits)
        return joined(_joined(sizes, x, torch.float32), signs, packed), memory

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        numel, width = numel_of(shapes), width_for(self.chunk)
        count, floats = self._count(numel), self._floats(numel)
        place_bytes = packed_bytes(count, width)
        value_bytes = packed_bytes(count, self.bits) if self._sizes else 0
        kinds = (torch.float32, floats), (torch.uint8, value_bytes), (torch.uint8, place_bytes)
        sizes, signs, packed = cut(code, *kinds)
        numbers = unpack(signs, self.bits, count).long() if self._sizes else torch.empty(0, device=code.device)
        where = unpack(packed, width, count).long()
        begin = at = first = 0
        for rows, length, keep in self._cuts(numel):
            end = at + rows * keep
            base = begin + length * torch.arange(rows, device=code.device).unsqueeze(1)
            if self._sizes:
                magnitudes = sizes[first : first + rows * self._sizes].view(rows, self._sizes)
                values = _read(numbers[at:end].view(rows, keep), magnitudes)
                first += rows * self._sizes
            else:
                values = sizes[at:end].view(rows, keep)
            places = (where[at:end].view(rows, keep) + base).view(-1)
            into.index_add_(0, places, values.reshape(-1).to(into.dtype))
            begin, at = begin + rows * length, end

    def _floats(self, numel: int) -> int:
        return block_count(numel, self.chunk) * self._sizes if self._sizes else self._count(numel)

    def wire_bytes(self, shapes: Shapes) -> int:
        numel = numel_of(shapes)
        count = self._count(numel)
        values = packed_bytes(count, self.bits) if self._sizes else 0
        return 4 * self._floats(numel) + values + packed_bytes(count, width_for(self.chunk))

    def contraction(self, shapes: Shapes) -> float | None:
        """With sizes: a mean of k sizes holds |x|_1^2 / k, which is at least their squared norm over k."""
        shares = [(1 if self._sizes else keep) / length for _, length, keep in self._cuts(numel_of(shapes))]
        return min(shares, default=1.0)


def _joined(parts: list[Tensor], x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype, device=x.device)


def _rounded(kept: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the index of the size of each value, plus `count` if it is negative, and the `count` sizes of each row."""
    sizes = kept.abs()
    least, largest = sizes.amin(1, keepdim=True), sizes.amax(1, keepdim=True)
    cells = ((sizes - least) * (count / (largest - least).clamp_(min=SMALLEST))).long().clamp_(0, count - 1)
    amounts = torch.zeros(len(kept), count, device=kept.device).scatter_add_(1, cells, torch.ones_like(sizes))
    means = torch.zeros_like(amounts).scatter_add_(1, cells, sizes / amounts.gather(1, cells))
    return cells + count * (kept < 0), means


def _read(numbers: Tensor, sizes: Tensor) -> Tensor:
    """Return the values that `_rounded` has encoded."""
    count = sizes.shape[1]
    values = sizes.gather(1, numbers % count)
    return torch.where(numbers >= count, -values, values)
