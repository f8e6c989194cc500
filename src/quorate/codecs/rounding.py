"""Rounding of real numbers to integers, block by block of a vector, and back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quorate.codecs.packed import cut, joined, pack, packed_bytes, pieces, unpack, width_for
from quorate.core.errors import ConfigurationError

SMALLEST = 1e-20
"""Smallest scale: divisions by a smaller one would be infinite, and zeros would become NaN."""


def largest_of_each(rows: Tensor) -> Tensor:
    """Return the largest absolute value of each row, at least `SMALLEST`."""
    largest = torch.empty(len(rows), device=rows.device)
    for piece in pieces(len(rows), rows.device, of=rows.shape[1]):
        torch.amax(rows[piece].abs(), 1, out=largest[piece])
    return largest.clamp_(min=SMALLEST)


def in_blocks(x: Tensor, size: int) -> Tensor:
    """Return `x` as rows of `size` numbers, the last one filled with zeros."""
    missing = -x.numel() % size
    x = torch.nn.functional.pad(x, (0, missing)) if missing else x
    return x.view(x.numel() // size, size)


def block_count(numel: int, size: int) -> int:
    """Return the number of blocks of `size` in `numel` numbers."""
    return -(-numel // size)


def times_each(x: Tensor, scales: Tensor, size: int) -> Tensor:
    """Multiply each block of `size` numbers of `x`, in place, by its own scale; return `x`."""
    whole = x.numel() // size
    x[: whole * size].view(whole, size).mul_(scales[:whole].unsqueeze(1))
    x[whole * size :].mul_(scales[whole:])
    return x


def drawn_bits(numel: int, bits: int, draws: torch.Generator) -> Tensor:
    """Return `numel` random integers (int32) of `bits` bits, at most 31; two or four from each word of 64 bits."""
    dtype = torch.int16 if bits <= 16 else torch.int32
    words = torch.empty(-(-numel * dtype.itemsize // 8), dtype=torch.int64, device=draws.device)
    words.random_(-(2**63), None, generator=draws)
    return words.view(dtype)[:numel].to(torch.int32).bitwise_and_((1 << bits) - 1)


def stochastic(rows: Tensor, factors: Tensor, levels: int, draws: torch.Generator) -> Tensor:
    """Return `levels` + one of the two integers around each number times its row's factor, the nearer one more likely.

    P(upper) is the distance from the lower one, so that the mean over draws is the number; an integer is unchanged.
    Numbers beyond ±`levels` become ±`levels`. Counted in parts of a level, since a sum of floats rounds once more.

    From 64 levels on there are 2^16 parts, about as fine as a float32 near the largest level; with fewer levels there
    are more.
    """
    bits = min(16, 30 - levels.bit_length()) if levels >= 64 else 30 - levels.bit_length()

    most = levels << bits

    def rounded(some: Tensor, scales: Tensor) -> Tensor:
        parts = (some * (scales * 2.0**bits)).clamp_(-most, most).round_().to(torch.int32)
        parts += drawn_bits(some.numel(), bits, draws).view(some.shape)
        return parts.bitwise_right_shift_(bits)

    return _by_pieces(rounded, rows, factors, levels)


def nearest(rows: Tensor, factors: Tensor, levels: int) -> Tensor:
    """Return `levels` + the integer nearest to each number times its row's factor, at most `levels`."""
    return _by_pieces(lambda some, scales: (some * scales).clamp_(-levels, levels).round_(), rows, factors, levels)


def _by_pieces(rounded: Callable[[Tensor, Tensor], Tensor], rows: Tensor, factors: Tensor, levels: int) -> Tensor:
    integers = torch.empty(rows.shape, dtype=torch.uint8 if levels <= 127 else torch.int32, device=rows.device)
    across = rows.shape[0] == 1  # one row may be all numbers of a tensor
    for piece in pieces(rows.shape[across], rows.device, of=rows.shape[not across]):
        where = (slice(None), piece) if across else (piece, slice(None))
        scales = factors if across else factors[piece]
        integers[where] = rounded(rows[where], scales.unsqueeze(1)).add_(levels)
    return integers


def coded(scales: Tensor, whole: Tensor, levels: int, numel: int) -> Tensor:
    """Return the code of `numel` integers from 0 to 2 `levels`, with the size of a level in each block (float32)."""
    return joined(scales, pack(whole.view(-1)[:numel], width_for(2 * levels + 1)))


def read(code: Tensor, levels: int, numel: int, size: int) -> Tensor:
    """Return the numbers in a code of `coded`."""
    width = width_for(2 * levels + 1)
    kinds = (torch.float32, block_count(numel, size)), (torch.uint8, packed_bytes(numel, width))
    scales, packed = cut(code, *kinds)
    return times_each(unpack(packed, width, numel).float().sub_(levels), scales, size)


def coded_bytes(levels: int, numel: int, size: int) -> int:
    """Return the bytes of a code of `coded`."""
    return 4 * block_count(numel, size) + packed_bytes(numel, width_for(2 * levels + 1))


def check_block(name: str, size: int) -> None:
    """Raise `ConfigurationError` where `size` is no length of a block."""
    if size < 1:
        raise ConfigurationError(f"{name} is {size}; it must be a number of numbers (at least 1)")
