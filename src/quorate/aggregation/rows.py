"""`Rows`: vectors as the rows of a matrix that stay in place, read a few columns at a time; and their products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from quorate.aggregation.ordering import mean_in_order
from quorate.core.device_copies import widest

_COLUMNS, _COLUMNS_ELSEWHERE = 1 << 16, 1 << 22
"""Columns processed together, on a CPU and on other devices: few on a CPU, so that copies stay in the cache."""
_CHUNK = 1 << 15
_FEW = 12


class Rows:
    """n vectors of c numbers, of one dtype and device; each divided by one of `divisors` (n), less `centre` (c).

    Cost: a copy of the columns in each pass.
    """

    def __init__(self, vectors: Sequence[Tensor], divisors: Tensor | None = None, centre: Tensor | None = None) -> None:
        self._vectors, self._divisors, self.centre = list(vectors), divisors, centre

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def width(self) -> int:
        """The number of columns c."""
        return int(self._vectors[0].shape[0])

    @property
    def device(self) -> torch.device:
        """The device of the vectors."""
        return self._vectors[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the vectors."""
        return self._vectors[0].dtype

    def columns(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield all columns, some at a time: their slice, and a copy (n, some), valid until the next ones."""
        divisors = None if self._divisors is None else self._divisors[:, None].to(self.device, self.dtype)
        memory = torch.empty(len(self) * self.step, dtype=self.dtype, device=self.device)
        for here in self._slices():
            copies = memory[: len(self) * (here.stop - here.start)].view(len(self), -1)
            if divisors is None and self.centre is not None:
                centre = self.centre[here]
                for x, into in zip(self._vectors, copies, strict=True):
                    torch.sub(x[here], centre, out=into)
                yield here, copies
                continue
            torch.stack([x[here] for x in self._vectors], out=copies)
            if divisors is not None:
                copies /= divisors
            if self.centre is not None:
                copies -= self.centre[here]
            yield here, copies

    def slices(self) -> Iterator[tuple[slice, Sequence[Tensor]]]:
        """Yield slices as `columns` does, with read-only rows: no copy is made where the vectors are used unchanged."""
        if self._divisors is not None or self.centre is not None:
            yield from ((here, list(copies)) for here, copies in self.columns())
            return
        for here in self._slices():
            yield here, [x[here] for x in self._vectors]

    def products(self, *, is_exact: bool) -> Tensor:
        """Return the inner products of all pairs of rows: (n, n) in float64 on the CPU; those of pieces add up.

        Cost: n^2 c products. Where not `is_exact`, sums of up to 2^16 are formed in float32."""
        products = Products(len(self), is_exact=is_exact)
        for _, rows in self.slices():
            products.add(rows)
        return products.total

    def write_weighed(self, weights: Sequence[float], into: Sequence[Tensor], *, is_exact: bool) -> None:
        """Write the centre plus the weighted sum of rows, formed in float64 where it `is_exact`, to each vector (c)
        of `into`, which may be the vectors themselves. No row is copied; those of weight 0 are not read."""
        divisors = [1.0] * len(self) if self._divisors is None else self._divisors.tolist()
        terms = [(x, w / by) for x, w, by in zip(self._vectors, weights, divisors, strict=True) if w]
        if self.centre is not None:
            terms.append((self.centre, 1.0 - sum(weights)))
        dtype = widest(self.device) if is_exact else self.dtype
        memory = torch.empty(self.step, dtype=dtype, device=self.device)
        for here in self._slices():
            total = memory[: here.stop - here.start]
            torch.mul(terms[0][0][here].to(dtype), terms[0][1], out=total) if terms else total.zero_()
            for x, w in terms[1:]:
                total.add_(x[here], alpha=w)
            for x in into:
                x[here].copy_(total)

    def write_middle(self, places: Sequence[int], first: int, last: int, into: Sequence[Tensor]) -> None:
        """Write the mean of the numbers at the places from `first` to `last` - 1 of each column in order to each vector
        of `into`.

        The columns are those of the finite rows at `places`. The vectors (c) of `into` may be the rows themselves.
        """
        self.write_combined(places, lambda rows, mean: mean_in_order(rows, first, last, mean), into)

    def write_combined(
        self, places: Sequence[int], combine: Callable[[Sequence[Tensor], Tensor], None], into: Sequence[Tensor]
    ) -> None:
        """Write the centre plus the result of `combine` for the rows at `places`, some columns at a time; as above."""
        memory = torch.empty(self.step, dtype=self.dtype, device=self.device)
        for here, all_rows in self.slices():
            result = memory[: here.stop - here.start]
            combine(all_rows if len(places) == len(self) else [all_rows[place] for place in places], result)
            if self.centre is not None:
                result += self.centre[here]
            for x in into:
                x[here].copy_(result)

    @property
    def step(self) -> int:
        """Most columns processed together."""
        return min(self.width, _COLUMNS if self.device.type == "cpu" else _COLUMNS_ELSEWHERE)

    def _slices(self) -> Iterator[slice]:
        step = max(1, self.step)
        for begin in range(0, self.width, step):
            yield slice(begin, min(begin + step, self.width))


class Products:
    """The products of `count` vectors, added a few columns at a time.

    Products of all pairs add up over pieces of the vectors.
    """

    def __init__(self, count: int, *, is_exact: bool) -> None:
        self._count, self._is_exact = count, is_exact
        self._pairs = [(first, second) for first in range(count) for second in range(first + 1)]
        self._of_pairs = [0.0] * len(self._pairs)
        self._whole: Tensor | float = 0.0

    def add(self, rows: Sequence[Tensor]) -> None:
        """Add the products of further columns (c) of all vectors."""
        like = rows[0]
        if self._is_exact or self._count > _FEW or like.device.type != "cpu" or like.dtype != torch.float32:
            self._whole = self._whole + _products_of(matrix(rows), is_exact=self._is_exact).cpu().double()
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
        rows = rows.to(widest(rows.device))
    if is_exact or rows.shape[1] <= _CHUNK:
        return rows @ rows.T
    whole = rows.shape[1] // _CHUNK * _CHUNK
    blocks, tail = rows[:, :whole].unflatten(1, (whole // _CHUNK, _CHUNK)).transpose(0, 1), rows[:, whole:]
    products: Tensor = (blocks @ blocks.mT).sum(0, dtype=widest(rows.device)) + tail @ tail.T
    return products
