"""The dynamic program against all cuts, and what it predicts of given ones."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.tuning.best_parts import LinkCosts, best_ends, costs_of, end_of_exchange, ends_by_size

TENSORS = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 1000)), min_size=1, max_size=8)


@given(TENSORS, st.floats(0, 0.3), st.sampled_from([100.0, 3000.0, float("inf")]), st.sampled_from([None, 0.0, 0.1]))
def test_no_other_cut_ends_earlier(
    tensors: list[tuple[float, int]], latency: float, bandwidth: float, gap: float | None
) -> None:
    ready, sizes = sorted(time for time, _ in tensors), [nbytes for _, nbytes in tensors]
    costs, count = LinkCosts(latency, bandwidth, gap), len(tensors)
    cuts = [(*inner, count) for length in range(count) for inner in combinations(range(1, count), length)]
    least = min(end_of_exchange(ready, sizes, cut, costs) for cut in cuts)
    assert end_of_exchange(ready, sizes, best_ends(ready, sizes, costs), costs) == pytest.approx(least)


def test_latency_makes_parts_few_and_bandwidth_makes_the_last_one_small() -> None:
    ready, sizes = [0.01 * (i + 1) for i in range(100)], [1000] * 100
    assert best_ends(ready, sizes, LinkCosts(10.0, 1e9)) == (100,)
    assert best_ends(ready, sizes, LinkCosts(0.0, 1e9)) == tuple(range(1, 101))
    on_slow_link, on_fast_link = (_lengths(best_ends(ready, sizes, LinkCosts(0.05, rate))) for rate in (1e5, 1e6))
    assert on_slow_link == sorted(on_slow_link) and 2 < len(on_slow_link) < 10
    assert 10 < len(on_fast_link) < 50 and max(on_fast_link[1:]) <= 6


def _lengths(ends: tuple[int, ...]) -> list[int]:
    return [end - begin for begin, end in zip((0, *ends), ends, strict=False)]


def test_costs_are_those_of_the_samples() -> None:
    costs = costs_of([(n, 0.002 + n / 5e6) for n in (1000, 60_000, 4_000_000)])
    assert costs.latency == pytest.approx(0.002) and costs.bandwidth == pytest.approx(5e6)
    assert costs_of([(1000, 0.01), (4_000_000, 0.009)]).bandwidth == float("inf")
    assert costs_of([(1000, 0.0001), (2000, 0.0004)]).latency == 0.0


def test_parts_by_size_are_full_with_the_tensor_that_reaches_it() -> None:
    assert ends_by_size([4, 1, 9, 5, 5, 1], 10, 5) == (2, 4, 6)
    assert ends_by_size([4, 1, 9, 1], 10, 5) == (2, 4)
    assert ends_by_size([1], 10, 5) == (1,)


def test_predicted_ends() -> None:
    ready, sizes, costs = [1.0, 2.0, 3.0], [10, 10, 10], LinkCosts(0.5, 10.0)
    assert end_of_exchange(ready, sizes, (1, 2, 3), costs) == pytest.approx(1 + 3 * 1.5)
    assert end_of_exchange(ready, sizes, (1, 2, 3), costs, channels=2) == pytest.approx(1 + 0.5 + 3 * 1.0)
    assert end_of_exchange(ready, sizes, (1, 2, 3), costs, overlaps=False) == pytest.approx(3 + 3 * 1.5)
    assert end_of_exchange(ready, sizes, (3,), costs) == pytest.approx(3 + 0.5 + 3)
    beside = LinkCosts(0.5, 10.0, gap=0.1)
    assert end_of_exchange(ready, sizes, (1, 2, 3), beside) == pytest.approx(1 + 3 * 1.1 + 0.4)
    assert end_of_exchange(ready[::-1], sizes, (1, 3), costs) == pytest.approx(3 + 1.5 + 2.5)
