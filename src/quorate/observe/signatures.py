"""Signatures of numbers that have to be equal on all workers, in a form whose sum shows whether they are.

A signature is a checksum, cut into two words. A worker adds a count of 1, each word, and the square of each word to a
header that is summed over all workers. The words of n workers are equal exactly where the square of their sum is n
times the sum of their squares. Words are so short that all of this is exact in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import Parameter

from quorate.core.local_tensor import local

LENGTH = 5
"""Elements of a signature: the number of workers that have given one, then each word and its square."""
_EXACT_BITS = 24
"""Bits of a whole number that float32 holds exactly."""
_NUMBERS = 64
"""Numbers of a tensor in a sample."""
_PLAIN = frozenset((Tensor, Parameter))
_OFTEN_UNTIL, _EVERY = 16, 16


def is_due(round_number: int) -> bool:
    """Return whether replicas are compared by samples after this round: 1, 2, 4, 8, 16, and every 16 from there on."""
    if round_number >= _OFTEN_UNTIL:
        return round_number % _EVERY == 0
    return round_number > 0 and round_number & (round_number - 1) == 0


def next_due(round_number: int) -> int:
    """Return the first such round after this one."""
    if round_number >= _OFTEN_UNTIL:
        return (round_number // _EVERY + 1) * _EVERY
    return 1 << round_number.bit_length()


def signature(checksum: int, max_size: int) -> list[float]:
    """Return the elements that a worker adds for its `checksum`, among at most `max_size` workers."""
    bits = max(1, (_EXACT_BITS - max(1, max_size - 1).bit_length()) // 2)
    mask = (1 << bits) - 1
    low, high = float(checksum & mask), float(checksum >> bits & mask)
    return [1.0, low, low * low, high, high * high]


def differ(sums: Sequence[float]) -> bool:
    """Return whether the signatures in a sum differ; `sums` are `LENGTH` elements."""
    count, low, low_squares, high, high_squares = sums
    return low * low != count * low_squares or high * high != count * high_squares


class Sample:
    """Some numbers of each of `tensors`, copied, bit for bit. Cost: two views of each, one copy for each dtype."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        views: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        self._places: list[tuple[tuple[torch.dtype, torch.device], int] | None] = []
        """For each tensor its dtype and device, and how many numbers are copied; None without a tensor."""
        for x in tensors:
            if x is None:
                self._places.append(None)
                continue
            own = (x if type(x) in _PLAIN else local(x)).detach()
            flat = (own if own.layout == torch.strided else own._values()).reshape(-1)
            view = flat[:: -(-flat.numel() // _NUMBERS) or 1]
            kind = view.dtype, view.device
            views.setdefault(kind, []).append(view)
            self._places.append((kind, view.numel()))
        self._copies = {kind: torch.cat(flats) for kind, flats in views.items()}

    @property
    def checksum(self) -> int:
        """The checksum of all numbers."""
        present = bytes(place is not None for place in self._places)
        return crc32(b"".join(_bytes_of(copy) for copy in self._copies.values()), crc32(present))

    def checksums(self) -> list[int]:
        """Return the checksum of each tensor; -1 where there is none."""
        remaining = {kind: _bytes_of(copy) for kind, copy in self._copies.items()}
        sums = []
        for place in self._places:
            if place is None:
                sums.append(-1)
                continue
            kind, count = place
            nbytes = count * kind[0].itemsize
            sums.append(crc32(remaining[kind][:nbytes]))
            remaining[kind] = remaining[kind][nbytes:]
        return sums


def _bytes_of(copy: Tensor) -> bytes:
    return bytes(copy.resolve_conj().resolve_neg().view(torch.uint8).cpu().numpy().data)
