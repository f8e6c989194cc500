"""Numbers packed into bytes, and unpacked: several tensors end to end, and integers of a few bits without gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

WIDEST = 16
"""Most bits of a number."""
NUMBERS = 1 << 18
"""Numbers of a piece, which are full bytes for any bits of a number."""


def joined(*tensors: Tensor) -> Tensor:
    """Return the bytes of all tensors, end to end (uint8); a single one is not copied."""
    parts = [x.contiguous().view(-1).view(torch.uint8) for x in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def cut(code: Tensor, *kinds: tuple[torch.dtype, int]) -> list[Tensor]:
    """Return the tensors in a code of `joined`; `kinds` are their dtypes and numbers of elements, in order."""
    tensors, at = list[Tensor](), 0
    for dtype, numel in kinds:
        end = at + numel * dtype.itemsize
        piece = code[at:end]
        if piece.storage_offset() % dtype.itemsize:
            piece = piece.clone()  # a view of another dtype begins at a multiple of its size
        tensors.append(piece.view(dtype))
        at = end
    return tensors


def ends_of(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return (begin, end) of each of several parts of lengths `counts`, end to end."""
    ends, at = [], 0
    for count in counts:
        ends.append((at, at + count))
        at += count
    return ends


def packed_bytes(numel: int, width: int) -> int:
    """Return the bytes of `numel` numbers of `width` bits."""
    return -(-numel * width // 8)


def width_for(count: int) -> int:
    """Return the bits of a number from 0 to `count` - 1."""
    return max(1, (count - 1).bit_length())


def pack(values: Tensor, width: int) -> Tensor:
    """Return the bytes of `values`: 1-D, integers from 0 to 2^width - 1, of any integer dtype or bool.

    Eight numbers of w < 8 bits fill w bytes; the first number has the lowest bits of the first byte. They are moved
    together in words of 64 bits: neighbours first, then pairs, then fours. For numbers of more than 8 bits all low
    bytes come first, and the remaining bits are packed after them.
    """
    if width > 8:
        return torch.cat([(values & 0xFF).to(torch.uint8), pack(values >> 8, width - 8)])
    if width == 8:
        return values.to(torch.uint8)
    packed = torch.empty(packed_bytes(values.numel(), width), dtype=torch.uint8, device=values.device)
    for piece in pieces(values.numel(), values.device):
        packed[_bytes_of(piece, width)] = _packed(values[piece], width)
    return packed


def _packed(values: Tensor, width: int) -> Tensor:
    numel = values.numel()
    values = values.view(torch.uint8) if values.dtype == torch.bool else values.to(torch.uint8)
    if numel % 8:
        values = pad(values, (0, -numel % 8))
    elif values.storage_offset() % 8:
        values = values.clone()
    words = values.view(torch.int64)
    for step in range(3):  # two lanes of 8 << step bits each, of which width << step are in use
        lower = _repeated((1 << (8 << step)) - 1, 16 << step)
        upper = (words & ~lower).bitwise_right_shift_((8 - width) << step)
        words = upper.bitwise_or_(words & lower)
    packed = words.to(torch.uint8) if width == 1 else words.view(torch.uint8).view(-1, 8)[:, :width].reshape(-1)
    return packed[: packed_bytes(numel, width)]


def unpack(code: Tensor, width: int, numel: int) -> Tensor:
    """Return the first `numel` numbers in `code`: uint8 for widths to 8, else int32."""
    if width > 8:
        return code[:numel].int() | unpack(code[numel:], width - 8, numel).int() << 8
    if width == 8:
        return code[:numel]
    numbers = torch.empty(numel, dtype=torch.uint8, device=code.device)
    for piece in pieces(numel, code.device):
        numbers[piece] = _unpacked(code[_bytes_of(piece, width)], width)[: piece.stop - piece.start]
    return numbers


def _unpacked(code: Tensor, width: int) -> Tensor:
    if len(code) % width:
        code = pad(code, (0, -len(code) % width))
    words = code.to(torch.int64) if width == 1 else pad(code.view(-1, width), (0, 8 - width)).view(torch.int64).view(-1)
    for step in (2, 1, 0):
        used = _repeated((1 << (width << step)) - 1, 16 << step)
        upper = (words & (used << (width << step))).bitwise_left_shift_((8 - width) << step)
        words = upper.bitwise_or_(words & used)
    return words.view(torch.uint8)


def positive(x: Tensor) -> Tensor:
    """Return which numbers are not below 0 (bool). They are compared as floats first, which is faster."""
    is_positive = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    for piece in pieces(x.numel(), x.device):
        is_positive[piece] = torch.ge(x[piece], 0, out=torch.empty_like(x[piece]))
    return is_positive


def signs(code: Tensor, numel: int) -> Tensor:
    """Return 1.0 for each of the first `numel` bits in `code` that is set, else -1.0."""
    rows, table = torch.empty(packed_bytes(numel, 1), 8, device=code.device), _signs(code.device)
    for piece in pieces(len(rows), code.device, of=8):
        torch.index_select(table, 0, code[piece].int(), out=rows[piece])
    return rows.view(-1)[:numel]


def _bytes_of(piece: slice, width: int) -> slice:
    """Return the bytes with the bits of a piece of numbers."""
    return slice(packed_bytes(piece.start, width), packed_bytes(piece.stop, width))


@lru_cache
def _signs(device: torch.device) -> Tensor:
    """Return the signs of the eight bits of every byte: (256, 8)."""
    bits = (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1
    return (2.0 * bits - 1.0).to(device)


@lru_cache
def _repeated(bits: int, every: int) -> int:
    """Return a word of 64 bits with `bits` at every multiple of `every`."""
    return sum(bits << at for at in range(0, 64, every))


def pieces(numel: int, device: torch.device, *, of: int = 1) -> Iterator[slice]:
    """Yield slices of `numel` rows of `of` numbers each, in order; none where there are no rows.

    A piece fits into a processor's cache: several passes over each are faster than over all of a vector. Their results
    also fit into memory that is already in use: the system provides new memory of some megabytes page by page, which
    takes longer than a pass. On other devices a vector is one piece.
    """
    step = max(1, NUMBERS // max(1, of)) if device.type == "cpu" else max(1, numel)
    for begin in range(0, numel, step):
        yield slice(begin, min(numel, begin + step))
