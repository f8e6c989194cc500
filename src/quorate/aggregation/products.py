"""Inner products of all pairs of vectors, which add up over pieces of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_CHUNK = 1 << 15
_FEW = 12


class Products:
    """Of `count` vectors, a few columns at a time."""

    def __init__(self, count: int, *, is_exact: bool) -> None:
        self._count, self._is_exact = count, is_exact
        self._pairs = [(one, other) for one in range(count) for other in range(one + 1)]
        self._of_pairs = [0.0] * len(self._pairs)
        self._whole: Tensor | float = 0.0

    def add(self, rows: Sequence[Tensor]) -> None:
        """Those of more columns: of vectors (c)."""
        like = rows[0]
        if self._is_exact or self._count > _FEW or like.device.type != "cpu" or like.dtype != torch.float32:
            self._whole = self._whole + _products_of(matrix(rows), is_exact=self._is_exact).double()
            return
        # Pair by pair, where they lie: sooner done than a copy of them as a matrix.
        some, dot = [x.numpy() for x in rows], np.dot
        with np.errstate(all="ignore"):
            new = [float(dot(some[one], some[other])) for one, other in self._pairs]
        self._of_pairs = [x + y for x, y in zip(self._of_pairs, new, strict=True)]

    @property
    def total(self) -> Tensor:
        """(n, n) in float64 on the CPU."""
        found = torch.zeros(self._count, self._count, dtype=torch.float64)
        for (one, other), x in zip(self._pairs, self._of_pairs, strict=True):
            found[one, other] = found[other, one] = x
        return found + (self._whole.cpu() if isinstance(self._whole, Tensor) else self._whole)


def matrix(rows: Sequence[Tensor]) -> Tensor:
    """Rows (c) as one tensor (n, c)."""
    return torch.stack(list(rows))


def _products_of(some: Tensor, *, is_exact: bool) -> Tensor:
    """Of all pairs of rows of an (n, c) tensor."""
    if is_exact:
        some = some.double()
    if is_exact or some.shape[1] <= _CHUNK:
        return some @ some.T
    whole = some.shape[1] // _CHUNK * _CHUNK
    blocks, rest = some[:, :whole].unflatten(1, (whole // _CHUNK, _CHUNK)).transpose(0, 1), some[:, whole:]
    found: Tensor = (blocks @ blocks.mT).sum(0, dtype=torch.float64) + rest @ rest.T
    return found
