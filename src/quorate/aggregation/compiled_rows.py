"""`CompiledRows`: rows whose passes numba compiles, where it is installed (the extra `kernels`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quorate.aggregation.ordering import FEW, comparisons
from quorate.aggregation.rows import Rows

_COLUMNS_AT_LEAST = 1 << 15
"""Fewest columns that are worth the third of a second in which numba is loaded."""
_SUPPORTED = (torch.float32, torch.float64)


def compiled_rows(vectors: Sequence[Tensor], divisors: Tensor | None = None, centre: Tensor | None = None) -> Rows:
    """Return `Rows`, compiled where possible. Compiled passes add up in another order than torch. So the result of one
    worker must be sent to all: passes of their own may differ, where numba is missing or processors differ."""
    like = vectors[0]
    is_one = like.device.type == "cpu" and like.dtype in _SUPPORTED and all(x.is_contiguous() for x in vectors)
    if is_one and len(like) >= _COLUMNS_AT_LEAST and _kernels() is not None:
        return CompiledRows(vectors, divisors, centre)
    return Rows(vectors, divisors, centre)


@lru_cache(maxsize=1)
def _kernels() -> ModuleType | None:
    try:
        from quorate.aggregation import kernels
    except ImportError:
        return None
    return kernels


class CompiledRows(Rows):
    """`Rows` of contiguous float32 or float64 on the CPU; an exchange by a rule takes half the time with it."""

    def products(self, *, is_exact: bool) -> Tensor:
        """Return the products as `Rows` does; where not `is_exact`, sums of 256 products are formed in float32."""
        count, kernels = len(self), _kernels()
        assert kernels is not None
        lower = np.zeros((count, count))
        kernels.add_products(*self._given(), self._from, self.width, *self._types(is_exact=is_exact), lower)
        triangle = torch.from_numpy(lower)
        return triangle.tril() + triangle.tril(-1).T

    def write_weighed(self, weights: Sequence[float], into: Sequence[Tensor], *, is_exact: bool) -> None:
        """Write the weighted sum, as `Rows` does."""
        addresses, divisors = self._given()
        kernels = _kernels()
        assert kernels is not None
        each, types = np.asarray(weights, np.float64) / divisors, self._types(is_exact=is_exact)
        kernels.write_weighed(addresses, each, self._from, 1.0 - sum(weights), self.width, *types, _addresses(into))

    def write_middle(self, places: Sequence[int], first: int, last: int, into: Sequence[Tensor]) -> None:
        """Write the mean in order, with the same bits as `Rows`."""
        kernels, chosen = _kernels(), list(places)
        if len(chosen) > FEW or self.centre is not None:
            super().write_middle(places, first, last, into)
            return
        assert kernels is not None
        addresses, divisors = self._given()
        pairs = [(low, high) for low, high, _, _ in comparisons(len(chosen), first, last, last - first == 2)]
        order = np.array(pairs, np.int64).reshape(-1, 2)
        like, _ = self._types(is_exact=False)
        kernels.write_middle(
            addresses[chosen], divisors[chosen], order, first, last, self.width, like, _addresses(into)
        )

    def _given(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        divisors = torch.ones(len(self)) if self._divisors is None else self._divisors
        return _addresses(self._vectors), divisors.double().numpy()

    @property
    def _from(self) -> NDArray[np.generic]:
        origin: NDArray[np.generic] = (self._vectors[0][:0] if self.centre is None else self.centre).numpy()
        return origin

    def _types(self, *, is_exact: bool) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return empty arrays of the dtypes of vectors and of sums."""
        like: NDArray[np.generic] = self._vectors[0][:0].numpy()
        return like, np.empty(0, np.float64) if is_exact else like


def _addresses(vectors: Sequence[Tensor]) -> NDArray[np.int64]:
    return np.array([x.data_ptr() for x in vectors], np.int64)
