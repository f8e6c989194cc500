"""Bits, and the choice of the largest: what other codecs are made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quorate.codecs.packed import WIDEST, pack, packed_bytes, signs, unpack, width_for
from quorate.codecs.selection import largest

NUMELS = (0, 1, 2, 7, 8, 9, 64, 1001)


@pytest.mark.parametrize("width", range(1, WIDEST + 1))
def test_packed_bits_come_back_and_have_no_gaps(width: int) -> None:
    for numel in NUMELS:
        values = torch.randint(1 << width, (numel,), generator=torch.Generator().manual_seed(numel))
        code = pack(values, width)
        assert code.dtype == torch.uint8 and len(code) == packed_bytes(numel, width) == (numel * width + 7) // 8
        assert torch.equal(unpack(code, width, numel).long(), values)
        if width <= 8:
            whole = sum(value << (place * width) for place, value in enumerate(values.tolist()))
            assert bytes(code.tolist()) == whole.to_bytes(len(code), "little")


@pytest.mark.parametrize("width", [1, 3, 8, 12])
def test_bits_may_lie_anywhere_in_memory(width: int) -> None:
    values = torch.randint(1 << width, (24,), dtype=torch.uint8 if width <= 8 else torch.int32)
    moved = torch.zeros(27, dtype=values.dtype)[3:].copy_(values)
    code = pack(moved, width)
    assert torch.equal(code, pack(values, width))
    assert torch.equal(unpack(torch.cat([code[:1], code])[1:], width, 24), values)


def test_signs_are_those_of_the_bits() -> None:
    bits = torch.tensor([True, False, False, True, True, False, True, False, False, True])
    assert signs(pack(bits, 1), 10).tolist() == [1, -1, -1, 1, 1, -1, 1, -1, -1, 1]


@pytest.mark.parametrize(("count", "width"), [(1, 1), (2, 1), (3, 2), (4, 2), (255, 8), (256, 8), (257, 9)])
def test_as_many_bits_as_are_needed(count: int, width: int) -> None:
    assert width_for(count) == width


MANY = 60_000


def _only_at_steps(value: float) -> Tensor:
    """What a sample of every thirtieth number takes for the whole: that of 3,000 among 60,000."""
    sizes = torch.rand(MANY, generator=torch.Generator().manual_seed(1))
    sizes[::30] = value
    return sizes


@pytest.mark.parametrize(
    "sizes",
    [
        torch.randn(MANY, generator=torch.Generator().manual_seed(0)).abs(),
        torch.zeros(MANY),
        torch.ones(MANY),
        torch.arange(MANY).float(),
        _only_at_steps(5.0),
        _only_at_steps(0.0),
        torch.cat([torch.full((300,), 2.0), torch.full((MANY - 300,), 1.0)]),
        torch.rand(40, generator=torch.Generator().manual_seed(0)),
    ],
    ids=["normal", "zeros", "ones", "rising", "large in the sample", "small in the sample", "few large", "few"],
)
@pytest.mark.parametrize("k", [1, 40, 600, 3000])
def test_the_largest_are_exactly_the_largest(sizes: Tensor, k: int) -> None:
    where = largest(sizes, k)
    k = min(k, len(sizes))
    assert where.dtype == torch.int64 and len(where.unique()) == len(where) == k
    assert torch.equal(sizes[where].sort().values, sizes.sort().values[-k:])
