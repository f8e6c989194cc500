"""Who is absurd beside its peers: found by sketches, and never where nobody is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quorate.aggregation.peers import NUMBERS, Peers, signs_of, sketch_of


def sketched(rows: Tensor) -> Tensor:
    return torch.stack([sketch_of(row, signs_of(len(row), torch.Generator().manual_seed(7))) for row in rows])


def drawn(count: int, number: int, noise: float, size: int = 3000) -> Tensor:
    generator = torch.Generator().manual_seed(100 + number)
    return torch.ones(size) + noise * torch.randn(count, size, generator=generator)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000])
def test_sketches_add_up_and_keep_lengths_and_angles(size: int) -> None:
    x, y = (torch.randn(size, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    first, second, both = (sketched(z.unsqueeze(0))[0] for z in (x, y, x + y))
    torch.testing.assert_close(first + second, both, rtol=1e-5, atol=1e-4)
    assert float(first.norm()) == pytest.approx(float(x.norm()), rel=0.25)
    assert abs(float(first @ second) - float(x @ y)) < 4 * float(x.norm() * y.norm()) / NUMBERS**0.5


@pytest.mark.parametrize("noise", [0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("count", [3, 4, 10])
def test_nobody_is_where_all_are_alike(count: int, noise: float) -> None:
    """Also where lengths fall, and differ by a factor of three, and gradients are nothing but noise."""
    peers = Peers()
    for number in range(100):
        lengths = 1 + 2 * torch.rand(count, generator=torch.Generator().manual_seed(number))
        rows = drawn(count, number, noise) * lengths.unsqueeze(1) * 0.95**number
        assert peers.absurd(sketched(rows), range(count)) == []


@pytest.mark.parametrize("count", [3, 8])
def test_nobody_is_where_hard_batches_are_seldom(count: int) -> None:
    """One gradient in thirty is a hundred times as long, of whichever worker."""
    peers, generator = Peers(), torch.Generator().manual_seed(5)
    for number in range(300):
        lengths = torch.where(torch.rand(count, generator=generator) < 1 / 30, 100.0, 1.0)
        absurd = peers.absurd(sketched(drawn(count, number, 1.0) * lengths.unsqueeze(1)), range(count))
        assert number < 40 or absurd == []


@pytest.mark.parametrize("begins", [0, 20])
def test_one_that_is_far_longer_is_at_once(begins: int) -> None:
    peers = Peers()
    for number in range(30):
        rows = drawn(5, number, 1.0)
        rows[3] *= 100.0 if number >= begins else 1.0
        assert peers.absurd(sketched(rows), range(5)) == ([3] if number >= begins else [])


def test_one_that_goes_against_the_others_is_after_some_sums() -> None:
    peers, results = Peers(), []
    for number in range(30):
        rows = drawn(5, number, 1.0)
        rows[2] *= -1.0
        results.append(peers.absurd(sketched(rows), range(5)))
    assert results[0] == [] and results[-1] == [2] and all(ranks in ([], [2]) for ranks in results)


def test_one_that_is_not_finite_is_and_half_of_all_never_are() -> None:
    rows = drawn(5, 0, 1.0)
    rows[1, 7] = torch.nan
    assert Peers().absurd(sketched(rows), [10, 11, 12, 13, 14]) == [11]
    rows[2:4] = torch.inf
    assert Peers().absurd(sketched(rows), range(5)) == []
    assert Peers().absurd(sketched(torch.tensor([[1.0] * 300, [1e9] * 300])), range(2)) == []
