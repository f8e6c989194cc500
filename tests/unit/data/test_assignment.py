"""The static share: equal counts, nothing lost, torch's DistributedSampler index by index."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, DistributedSampler

from quorate.data.assignment import StaticShare, epoch_order

SIZES = (1, 2, 3, 5)

examples = st.integers(1, 60)
sizes = st.sampled_from(SIZES)
seeds = st.integers(0, 2**40)
epochs = st.integers(0, 1000)


class Numbers(Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def shares(n: int, size: int, epoch: int, **settings: int | bool) -> list[list[int]]:
    return [StaticShare(rank=rank, size=size, **settings).indices(n, epoch).tolist() for rank in range(size)]


@given(examples, sizes, seeds, epochs, st.booleans())
def test_every_example_is_somebodys_and_counts_are_equal(
    n: int, size: int, seed: int, epoch: int, shuffle: bool
) -> None:
    each = shares(n, size, epoch, seed=seed, shuffle=shuffle)
    assert {len(share) for share in each} == {StaticShare(rank=0, size=size).length(n)}
    assert set().union(*each) == set(range(n))
    assert sum(map(len, each)) - n < size


@given(examples, sizes, seeds, epochs)
def test_dropping_the_last_gives_nobody_an_example_twice(n: int, size: int, seed: int, epoch: int) -> None:
    each = shares(n, size, epoch, seed=seed, drop_last=True)
    assert {len(share) for share in each} == {n // size}
    together = [index for share in each for index in share]
    assert len(set(together)) == len(together)
    assert set(together) <= set(range(n))


@given(examples, sizes, st.integers(0, 2**40), epochs, st.booleans(), st.booleans())
def test_equals_torch_distributed_sampler(
    n: int, size: int, seed: int, epoch: int, shuffle: bool, drop_last: bool
) -> None:
    for rank, own_share in enumerate(shares(n, size, epoch, seed=seed, shuffle=shuffle, drop_last=drop_last)):
        if not own_share:
            continue  # torch's sampler asserts where nothing is left
        torchs = DistributedSampler(Numbers(n), size, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        torchs.set_epoch(epoch)
        assert own_share == list(torchs)
        assert len(own_share) == len(torchs)


@given(st.integers(1, 200), seeds, epochs)
def test_the_order_depends_on_nothing_else(n: int, seed: int, epoch: int) -> None:
    torch.manual_seed(1)
    first = epoch_order(n, seed=seed, epoch=epoch)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(first, epoch_order(n, seed=seed, epoch=epoch))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())


def test_epochs_and_seeds_differ_unless_unshuffled() -> None:
    orders = [epoch_order(50, seed=7, epoch=epoch).tolist() for epoch in range(4)]
    orders.append(epoch_order(50, seed=70, epoch=0).tolist())
    assert len({tuple(order) for order in orders}) == 5
    assert epoch_order(50, seed=7, epoch=3, shuffle=False).tolist() == list(range(50))


@pytest.mark.parametrize(
    ("n", "size", "expected"), [(7, 3, [[0, 3, 6], [1, 4, 0], [2, 5, 1]]), (2, 5, [[0], [1]] * 2 + [[0]])]
)
def test_padding_wraps_round(n: int, size: int, expected: list[list[int]]) -> None:
    assert shares(n, size, 0, shuffle=False) == expected
