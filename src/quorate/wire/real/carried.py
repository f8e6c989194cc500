"""The form of numbers sent between hosts: that of the addition, or for small floats half of its bytes or fewer."""

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
"""Bytes of the two float32 that a small float needs: slices are so small that torch wakes no other threads."""


class Carried:
    """The form in which the numbers of one sum are sent: `narrow` where that is smaller than float32.

    Arrays hold numbers in the form of the addition, or in the sent form; for small floats, which numpy does not know,
    the latter are their bits, as integers.
    """

    def __init__(self, wide: np.dtype[Any], narrow: torch.dtype | None) -> None:
        self._narrow = narrow
        self.dtype = wide if narrow is None else bits_of(narrow)
        """Dtype of arrays in the sent form."""

    def add(self, terms: Sequence[Numbers], *into: Numbers) -> None:
        """Write the sum of `terms`, in order, into each of `into`, rounded where that has the sent form.

        The first of `into` may be the first of `terms` and no other; later ones may be any.
        """
        if self._narrow is not None:
            self._add_floats(terms, into)
            return
        for at in slices_at_once(slice(0, len(into[0])), self.dtype.itemsize):
            add_up([x[at] for x in terms], into[0][at])
            for x in into[1:]:
                np.copyto(x[at], into[0][at])

    def _add_floats(self, terms: Sequence[Numbers], into: Sequence[Numbers]) -> None:
        all_ = list(slices_at_once(slice(0, len(into[0])), _PAIR_BYTES))
        memory = torch.empty((2, max((at.stop - at.start for at in all_), default=0)))
        for at in all_:
            total, wide = memory[:, : at.stop - at.start]
            total.copy_(self._floats(terms[0][at]))
            for x in terms[1:]:
                total.add_(wide.copy_(self._floats(x[at])))
            for x in into:
                self._floats(x[at]).copy_(total)

    def _floats(self, x: Numbers) -> Tensor:
        floats = torch.from_numpy(x)
        return floats if self._narrow is None or x.dtype == np.float32 else floats.view(self._narrow)


def bits_of(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the dtype of integers of equal size."""
    return np.dtype(f"i{dtype.itemsize}")


def is_small_float(dtype: torch.dtype) -> bool:
    """Whether numbers of `dtype` are added in float32."""
    return dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize


def numbers_of(x: Tensor) -> Numbers:
    """Return the numbers of a contiguous CPU tensor, in its memory; for small floats their bits."""
    flat = x.detach().as_strided((x.numel(),), (1,))  # one number may count as contiguous and still have a stride
    bits: Numbers = flat.view(torch.uint8).numpy().view(bits_of(x.dtype)) if is_small_float(x.dtype) else flat.numpy()
    return bits
