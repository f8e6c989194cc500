"""Rows in order, by comparisons of whole rows, as sorting each column gives them."""

from __future__ import annotations

import pytest
import torch

from quorate.aggregation.ordering import FEW, in_order


@pytest.mark.parametrize("count", [*range(2, FEW + 3, 2)])
def test_the_two_in_the_middle_are_a_pair(count: int) -> None:
    rows = torch.randn(count, 50, generator=torch.Generator().manual_seed(count))
    first = count // 2 - 1
    pair = torch.stack(list(in_order(list(rows), first, first + 2, is_pair=True)))
    assert torch.equal(pair.sort(0).values, rows.sort(0).values[first : first + 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [*range(1, 17), FEW, FEW + 1])
def test_each_column_is_in_order(count: int, dtype: torch.dtype) -> None:
    rows = torch.randn(count, 200, generator=torch.Generator().manual_seed(count)).to(dtype)
    for first, last in [(0, count), (0, 1), (count // 2, count // 2 + 1), (count - 1, count)]:
        copies = rows.clone()
        assert torch.equal(torch.stack(list(in_order(list(copies), first, last))), rows.sort(0).values[first:last])
        assert torch.equal(copies, rows), "rows are not changed"
