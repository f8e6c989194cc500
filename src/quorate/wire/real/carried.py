"""Numbers as they travel between hosts: as they are added, or, of small floats, in half of the bytes or fewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.wire.real.shared_segment import add_up, slices_at_once

Numbers = NDArray[Any]

_PAIR_BYTES = 8
"""Of a number in the two float32 that small floats need: so few at once that torch wakes no other threads for them."""


class Carried:
    """How the numbers of one sum travel: as `narrow` where that is smaller than the float32 in which they are added.

    Arrays hold numbers either as they are added, or as they travel; of small floats, which numpy does not know, the
    latter are the bits, as integers.
    """

    def __init__(self, wide: np.dtype[Any], narrow: torch.dtype | None) -> None:
        self._narrow = narrow
        self.dtype = wide if narrow is None else bits_of(narrow)
        """Of an array of what travels."""

    def add(self, given: Sequence[Numbers], *into: Numbers) -> None:
        """Write the sum of `given`, in order, into each of `into`, rounded where that holds what travels.

        The first of `into` may be the first of `given` and no other; those behind it may be any.
        """
        if self._narrow is not None:
            self._add_floats(given, into)
            return
        for at in slices_at_once(slice(0, len(into[0])), self.dtype.itemsize):
            add_up([x[at] for x in given], into[0][at])
            for x in into[1:]:
                np.copyto(x[at], into[0][at])

    def _add_floats(self, given: Sequence[Numbers], into: Sequence[Numbers]) -> None:
        all_ = list(slices_at_once(slice(0, len(into[0])), _PAIR_BYTES))
        memory = torch.empty((2, max((at.stop - at.start for at in all_), default=0)))
        for at in all_:
            total, wide = memory[:, : at.stop - at.start]
            total.copy_(self._floats(given[0][at]))
            for x in given[1:]:
                total.add_(wide.copy_(self._floats(x[at])))
            for x in into:
                self._floats(x[at]).copy_(total)

    def _floats(self, x: Numbers) -> Tensor:
        found = torch.from_numpy(x)
        return found if self._narrow is None or x.dtype == np.float32 else found.view(self._narrow)


def bits_of(dtype: torch.dtype) -> np.dtype[Any]:
    """Integers that are as large."""
    return np.dtype(f"i{dtype.itemsize}")


def is_small_float(dtype: torch.dtype) -> bool:
    """Whether numbers of this type are added in float32."""
    return dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize


def numbers_of(x: Tensor) -> Numbers:
    """Those of a contiguous CPU tensor, in its memory; of small floats their bits."""
    flat = x.detach().as_strided((x.numel(),), (1,))  # one number may count as contiguous and still have a stride
    found: Numbers = flat.view(torch.uint8).numpy().view(bits_of(x.dtype)) if is_small_float(x.dtype) else flat.numpy()
    return found


def as_integers(x: Tensor) -> Tensor | None:
    """The memory of `x` as integers, one after the other; None where it is not whole numbers of 8 or 4 bytes."""
    if not x.is_contiguous() or x.is_conj() or x.is_neg():
        return None
    for dtype in (torch.int64, torch.int32):
        offset, nbytes = x.storage_offset() * x.itemsize, x.numel() * x.itemsize
        if offset % dtype.itemsize == 0 and nbytes % dtype.itemsize == 0:
            return x.view(-1).view(dtype)
    return None
