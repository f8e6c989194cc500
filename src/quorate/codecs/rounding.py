"""Rounding of real numbers to integers, block by block of a vector, and back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quorate.codecs.bits import pack, packed_bytes, unpack, width_for
from quorate.codecs.packed import cut, joined
from quorate.codecs.pieces import pieces
from quorate.core.errors import ConfigurationError

SMALLEST = 1e-20
"""Of a scale: what a smaller one is divided by would be infinite, and zeros no number."""


def largest_of_each(rows: Tensor) -> Tensor:
    """The largest absolute value of each row, and at least `SMALLEST`."""
    found = torch.empty(len(rows), device=rows.device)
    for piece in pieces(len(rows), rows.device, of=rows.shape[1]):
        torch.amax(rows[piece].abs(), 1, out=found[piece])
    return found.clamp_(min=SMALLEST)


def in_blocks(x: Tensor, size: int) -> Tensor:
    """`x` as rows of `size` numbers, the last one filled with zeros."""
    missing = -x.numel() % size
    x = torch.nn.functional.pad(x, (0, missing)) if missing else x
    return x.view(x.numel() // size, size)


def block_count(numel: int, size: int) -> int:
    """How many blocks so many numbers are."""
    return -(-numel // size)


def times_each(x: Tensor, scales: Tensor, size: int) -> Tensor:
    """`x`, in place, each block of `size` numbers multiplied by its own scale."""
    whole = x.numel() // size
    x[: whole * size].view(whole, size).mul_(scales[:whole].unsqueeze(1))
    x[whole * size :].mul_(scales[whole:])
    return x


def drawn_bits(numel: int, bits: int, draws: torch.Generator) -> Tensor:
    """So many random whole numbers (int32) of so many bits, at most 31; two or four from each word of 64 bits."""
    dtype = torch.int16 if bits <= 16 else torch.int32
    words = torch.empty(-(-numel * dtype.itemsize // 8), dtype=torch.int64, device=draws.device)
    words.random_(-(2**63), None, generator=draws)
    return words.view(dtype)[:numel].to(torch.int32).bitwise_and_((1 << bits) - 1)


def stochastic(rows: Tensor, factors: Tensor, levels: int, draws: torch.Generator) -> Tensor:
    """`levels` + one of the two whole numbers around each number times its row's factor, the nearer one more likely.

    P(upper) is the distance from the lower one, so that the mean over draws is the number; a whole number stays what it
    is. What is beyond ±`levels` becomes ±`levels`. Counted in parts of a level, since a sum of floats rounds once more:
    in 2^16 of them from 64 levels on, which is about as fine as a float32 is at the highest, and in more below.
    """
    bits = min(16, 30 - levels.bit_length()) if levels >= 64 else 30 - levels.bit_length()

    most = levels << bits

    def rounded(some: Tensor, scales: Tensor) -> Tensor:
        parts = (some * (scales * 2.0**bits)).clamp_(-most, most).round_().to(torch.int32)
        parts += drawn_bits(some.numel(), bits, draws).view(some.shape)
        return parts.bitwise_right_shift_(bits)

    return _by_pieces(rounded, rows, factors, levels)


def nearest(rows: Tensor, factors: Tensor, levels: int) -> Tensor:
    """`levels` + the whole number nearest to each number times its row's factor, at most `levels`."""
    return _by_pieces(lambda some, scales: (some * scales).clamp_(-levels, levels).round_(), rows, factors, levels)


def _by_pieces(rounded: Callable[[Tensor, Tensor], Tensor], rows: Tensor, factors: Tensor, levels: int) -> Tensor:
    found = torch.empty(rows.shape, dtype=torch.uint8 if levels <= 127 else torch.int32, device=rows.device)
    across = rows.shape[0] == 1  # one row may be all numbers of a tensor
    for piece in pieces(rows.shape[across], rows.device, of=rows.shape[not across]):
        where = (slice(None), piece) if across else (piece, slice(None))
        scales = factors if across else factors[piece]
        found[where] = rounded(rows[where], scales.unsqueeze(1)).add_(levels)
    return found


def coded(scales: Tensor, whole: Tensor, levels: int, numel: int) -> Tensor:
    """The code of `numel` whole numbers, of 0 to 2 `levels`, and of what one level is in each block (float32)."""
    return joined(scales, pack(whole.view(-1)[:numel], width_for(2 * levels + 1)))


def read(code: Tensor, levels: int, numel: int, size: int) -> Tensor:
    """The numbers that `coded` was given."""
    width = width_for(2 * levels + 1)
    kinds = (torch.float32, block_count(numel, size)), (torch.uint8, packed_bytes(numel, width))
    scales, packed = cut(code, *kinds)
    return times_each(unpack(packed, width, numel).float().sub_(levels), scales, size)


def coded_bytes(levels: int, numel: int, size: int) -> int:
    """The bytes of a code as `coded` makes it."""
    return 4 * block_count(numel, size) + packed_bytes(numel, width_for(2 * levels + 1))


def check_block(name: str, size: int) -> None:
    """Raises `ConfigurationError` where `size` is no length of a block."""
    if size < 1:
        raise ConfigurationError(f"{name} is {size}; it must be a number of numbers (at least 1)")
