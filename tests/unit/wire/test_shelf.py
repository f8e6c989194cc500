"""What is written to everyone's memory in place of a sum is written once, as it may be made of what lies there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from quorate.wire.real.carried import numbers_of
from quorate.wire.real.shelf import Sum


def test_what_failed_to_be_written_is_not_written_again() -> None:
    calls = list[int]()

    def write(into: Sequence[Tensor]) -> None:
        calls.append(len(into))
        into[0].mul_(2.0)
        raise MemoryError("no room")

    x = torch.ones(3)
    sum_ = Sum(x, "all_gather_into", 1, 2, write=write)
    for _ in range(2):  # a thread that asks, and then one that waits
        with pytest.raises(MemoryError, match="no room"):
            sum_.written_to([numbers_of(x), numbers_of(torch.zeros(3))])
    assert calls == [2] and x.tolist() == [2.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int16])
def test_it_is_written_in_the_type_that_the_tensor_has(dtype: torch.dtype) -> None:
    seen = list[torch.dtype]()

    def write(into: Sequence[Tensor]) -> None:
        seen.extend(x.dtype for x in into)
        into[0].fill_(1)

    x = torch.zeros(5, dtype=dtype)
    Sum(x, "all_gather_into", 1, 2, write=write).written_to([numbers_of(x)])
    assert seen == [dtype] and bool((x == 1).all())
