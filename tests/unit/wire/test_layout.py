"""How sums among several hosts are shared out: every element is in one slice, and every host has somebody for each."""

from __future__ import annotations

import pytest

from quorate.wire.cut import WHOLE_BYTES
from quorate.wire.real.host_sums import Layout, layout_of

HOSTS = {0: 0, 1: 1, 2: 0, 3: 3, 4: 1}
"""Of each rank, the lowest rank there."""


def test_hosts_are_in_order_of_their_lowest_ranks() -> None:
    assert layout_of(5, HOSTS.__getitem__) == Layout(((0, 2), (1, 4), (3,)))
    assert [layout_of(5, HOSTS.__getitem__).place_of(rank) for rank in range(5)] == [0, 1, 0, 2, 1]


def test_slices_are_exchanged_by_one_of_each_host() -> None:
    layout = Layout(((0, 1, 2), (3,), (4, 5)))
    assert [layout.heads(index) for index in range(layout.width)] == [[0, 3, 4], [1, 3, 5], [2, 3, 4]]


@pytest.mark.parametrize("numel", [1, 63, 64, 65, WHOLE_BYTES // 4, WHOLE_BYTES // 4 + 1, 1_000_003])
@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_every_element_is_in_one_slice(numel: int, width: int) -> None:
    layout = Layout((tuple(range(width)), (width,)))
    slices = [here for _, here in layout.slices(5, numel, 4)]
    assert [at for here in slices for at in range(numel)[here]] == list(range(numel))
    assert all(here.stop > here.start for here in slices)


def test_small_tensors_go_round() -> None:
    layout = Layout(((0, 1), (2, 3)))
    assert [layout.slices(number, 100, 4) for number in range(3)] == [[(n % 2, slice(0, 100))] for n in range(3)]
