"""Draws by counting: pure, even, and of different workers where they are to be different."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest

from quorate.core import draws
from quorate.core.draws import chosen, mixed, uniform


def test_known_draws_stay_what_they_are() -> None:
    assert [mixed(), mixed(0), mixed(1, 2, 3), mixed(-1)] == [
        0,
        16294208416658607535,
        7702586659592502839,
        16490336266968443936,
    ]  # records of earlier runs can be repeated only as long as this holds


def test_uniform_is_strictly_between_its_ends() -> None:
    numbers = [uniform(7, i) for i in range(4000)]
    assert sum(numbers) / 4000 == pytest.approx(0.5, abs=0.02)
    assert Counter(int(10 * u) for u in numbers).keys() == set(range(10))
    for bits in (0, 2**64 - 1):
        with mock.patch.object(draws, "mixed", return_value=bits):
            assert 0 < uniform(1) < 1


@pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 4), (3, 4), (4, 4), (2, 7)])
def test_chosen_are_different_and_all_come_equally_often(count: int, size: int) -> None:
    sets = [chosen(count, size, 3, step) for step in range(3000)]
    assert all(len(each) == count and each <= set(range(size)) for each in sets)
    often = Counter(rank for each in sets for rank in each)
    assert [often[rank] for rank in range(size)] == pytest.approx([3000 * count / size] * size, rel=0.1)


def test_chosen_pairs_are_equally_likely() -> None:
    often = Counter(chosen(2, 4, step) for step in range(6000))
    assert sorted(often.values()) == pytest.approx([1000] * 6, rel=0.1)
