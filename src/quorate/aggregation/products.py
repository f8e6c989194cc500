"""Inner products of all pairs of vectors, which add up over pieces of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_CHUNK = 1 << 15
_FEW = 12


class Products:
    """The products of `count` vectors, added a few columns at a time."""

    def __init__(self, count: int, *, is_exact: bool) -> None:
        self._count, self._is_exact = count, is_exact
        self._pairs = [(first, second) for first in range(count) for second in range(first + 1)]
        self._of_pairs = [0.0] * len(self._pairs)
        self._whole: Tensor | float = 0.0

    def add(self, rows: Sequence[Tensor]) -> None:
        """Add the products of further columns (c) of all vectors."""
        like = rows[0]
        if self._is_exact or self._count > _FEW or like.device.type != "cpu" or like.dtype != torch.float32:
            self._whole = self._whole + _products_of(matrix(rows), is_exact=self._is_exact).double()
            return
        # Pair by pair, in place: faster than a copy of them as a matrix.
        arrays, dot = [x.numpy() for x in rows], np.dot
        with np.errstate(all="ignore"):
            new = [float(dot(arrays[first], arrays[second])) for first, second in self._pairs]
        self._of_pairs = [x + y for x, y in zip(self._of_pairs, new, strict=True)]

    @property
    def total(self) -> Tensor:
        """The products (n, n), in float64 on the CPU."""
        products = torch.zeros(self._count, self._count, dtype=torch.float64)
        for (first, second), x in zip(self._pairs, self._of_pairs, strict=True):
            products[first, second] = products[second, first] = x
        return products + (self._whole.cpu() if isinstance(self._whole, Tensor) else self._whole)


def matrix(rows: Sequence[Tensor]) -> Tensor:
    """Return rows (c) as one tensor (n, c)."""
    return torch.stack(list(rows))


def _products_of(rows: Tensor, *, is_exact: bool) -> Tensor:
    """Return the products of all pairs of rows of an (n, c) tensor."""
    if is_exact:
        rows = rows.double()
    if is_exact or rows.shape[1] <= _CHUNK:
        return rows @ rows.T
    whole = rows.shape[1] // _CHUNK * _CHUNK
    blocks, tail = rows[:, :whole].unflatten(1, (whole // _CHUNK, _CHUNK)).transpose(0, 1), rows[:, whole:]
    products: Tensor = (blocks @ blocks.mT).sum(0, dtype=torch.float64) + tail @ tail.T
    return products
