"""Sums of workers that compute layers together: what they cost, and that their bits are those of one all-reduce."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.sharding.tensor.activations import Together
from quorate.sharding.traffic import Traffic
from quorate.wire.group import GroupWire
from quorate.wire.metered import Metered
from quorate.wire.virtual.world import VirtualWorld

LARGE = (6, 4, 1000)
NBYTES = 4 * 6 * 4 * 1000


def summed(shape: tuple[int, ...], strange: bool = False) -> Any:
    """For one worker: the sum, that of an all-reduce, and the bytes that it has sent for the former."""

    def task(wire: Wire) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(wire.rank))
        x = x.transpose(0, -1) if strange else x
        metered = Metered(wire)
        group, mesh = GroupWire(metered, range(wire.size)), Any
        total = Together(group, Traffic(), mesh).sum(x)  # type: ignore[arg-type]
        sent = metered.meter.total_out
        whole = GroupWire(wire, range(wire.size)).all_reduce(x.clone(memory_format=torch.contiguous_format)).wait()
        return total, whole, sent

    return task


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("strange", [False, True])
def test_a_large_sum_is_sent_in_pieces(size: int, strange: bool) -> None:
    """2 (T - 1) / T of it, and the bits of a sum that is sent whole."""
    for total, whole, sent in VirtualWorld(size).run(summed(LARGE, strange)):
        assert total.shape == whole.shape and torch.equal(total, whole) and total.is_contiguous()
        assert sent == 2 * (size - 1) * NBYTES // size


def test_a_small_sum_is_sent_whole() -> None:
    for total, whole, sent in VirtualWorld(3).run(summed((4, 10))):
        assert torch.equal(total, whole) and sent == 2 * 160


def test_pieces_of_an_uneven_sum_are_about_equal() -> None:
    for total, whole, sent in VirtualWorld(3).run(summed((4, 5000))):
        assert torch.equal(total, whole) and 80000 * 4 / 3 <= sent + 512 <= 80000 * 4 / 3 + 1024


def test_an_empty_sum() -> None:
    for total, whole, _ in VirtualWorld(3).run(summed((0, 4))):
        assert total.shape == whole.shape == (0, 4)
