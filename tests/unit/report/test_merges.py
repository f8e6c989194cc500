"""Merges of learners, out of what they told with what they handed in."""

from __future__ import annotations

import re
from typing import Any

import pytest

from quorate.report.reading.rounds import RoundRecord, round_of
from quorate.report.topics.merges import SHOWN, MergeDots, figures_of_merges, merge_chart, merges_summary


def merged(
    number: int, weights: dict[int, list[float]], ages: dict[int, int] | None = None, **more: Any
) -> RoundRecord:
    """Round `number`, in which each rank told these weights by fragment, and gave what was so many rounds old."""
    taken = {rank: [((ages or {}).get(rank, 0), 1)] for rank in weights}
    headers = {rank: [{"time": number, "weights": listed, "speed": None}] for rank, listed in weights.items()}
    return RoundRecord(number, 10.0 + number, 4.0, 2, taken, headers=headers, **more)


def test_weights_are_those_of_the_fragment_that_was_merged() -> None:
    rounds = [merged(1, {0: [3.0, 9.0], 1: [1.0, 1.0]}), merged(2, {0: [3.0, 9.0], 1: [1.0, 1.0]})]
    merges = figures_of_merges(rounds, lambda time: time - 10.0)
    assert merges is not None
    assert [(merge.number, merge.fragment, merge.time) for merge in merges.shown] == [(1, 0, 1.0), (2, 1, 2.0)]
    assert [merge.given for merge in merges.shown] == [((0, 0.75, 0), (1, 0.25, 0)), ((0, 0.9, 0), (1, 0.1, 0))]


def test_where_all_settle_all_fragments_count() -> None:
    merges = figures_of_merges([merged(1, {0: [4.0, 0.0], 1: [1.0, 1.0]}, settles=True)], float)
    assert merges is not None
    assert merges.shown[0].fragment is None
    assert [share for _, share, _ in merges.shown[0].given] == pytest.approx([2 / 3, 1 / 3])


def test_ages_count_rounds_of_the_same_fragment() -> None:
    rounds = [merged(9, {0: [1.0] * 4, 1: [1.0] * 4}, {0: 3, 1: 8}, window=0.5), merged(10, {1: [1.0] * 4}, window=0.1)]
    merges = figures_of_merges(rounds, float)
    assert merges is not None
    assert [age for merge in merges.shown for _, _, age in merge.given] == [0, 2, 0]
    summary = merges_summary([merges, merges])
    assert summary is not None
    assert summary.count == 4 and len(summary.shown) == 2
    assert summary.window_mean == pytest.approx(0.3) and summary.window_p95 == 0.5
    assert summary.shares == ((0, pytest.approx(0.25), 0.0), (1, pytest.approx(0.75), pytest.approx(2 / 3)))


def test_gradients_of_a_quorum_are_no_merges() -> None:
    headers = {0: [[0.01, None, 3.0, 2.0]]}
    assert figures_of_merges([RoundRecord(1, 1.0, 2.0, 2, {0: [(0, 1)]}, headers=headers)], float) is None
    assert figures_of_merges([RoundRecord(1, 1.0, 2.0, 2, {0: [(0, 1)]})], float) is None
    assert figures_of_merges([merged(1, {0: [0.0]})], float) is None, "nobody had made a step"
    assert merges_summary([]) is None


def test_a_row_says_what_was_told() -> None:
    row = {"kind": "round", "number": 3, "time": 1.0, "weight": 2.0, "live": 2, "contributors": {"0": [[0, 1]]}}
    record = round_of({**row, "told": {"0": [{"weights": [2.0]}]}, "window": 0.25, "settles": True})
    assert record is not None
    assert (record.headers, record.window, record.settles) == ({0: [{"weights": [2.0]}]}, 0.25, True)
    assert round_of({**row, "told": {"x": []}}) is None


def test_the_last_merges_are_drawn() -> None:
    merges = figures_of_merges([merged(number, {0: [1.0]}) for number in range(1, SHOWN + 12)], float)
    assert merges is not None
    assert merges.count == SHOWN + 11 and merges.shown[0].number == 12


def test_a_dot_is_as_large_as_the_weight_and_hollow_where_it_is_late() -> None:
    merges = [MergeDots(0.0, [(0, 0.9, False), (1, 0.1, True)]), MergeDots(1.0, [(0, 1.0, False)])]
    drawn = str(merge_chart(["rank 0", "rank 1"], merges, title="time", width=600.0, label="Merges"))
    body = drawn[drawn.index("rank 1") :]
    fresh = [float(x) for x in re.findall(r'merge-dot fresh" stroke-width="([0-9.]+)"', body)]
    late = [float(x) for x in re.findall(r'merge-dot late" stroke-width="([0-9.]+)"', body)]
    assert len(late) == 1 and min(fresh) > late[0]
