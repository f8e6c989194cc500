"""Who is slow: found by arrival, not named by chance."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorate.records.rows import Step
from quorate.report.figures.lateness import COLUMNS, Skew, meetings_of, skew_of
from quorate.report.reading.run import read_run
from quorate.report.topics.arrival import arrival_of, sentence_of
from tests.support.made_records import make_run


def skew_in(folder: Path, **changes: Any) -> Skew:
    steps = read_run(make_run(folder, **changes)).after(5)
    skew = skew_of(meetings_of(steps), steps)
    assert skew is not None
    return skew


def at(number: int, arrive: float, end: float, **more: Any) -> Step:
    return Step(
        **{"step": number, "optimizer": "1", "round": number, "begin": end - 1.0, "arrive": arrive, "end": end, **more}
    )


def skew_by(arrivals: Mapping[int, Sequence[float]]) -> Skew:
    """Return the skew of steps of a second each; `arrivals` are times within the steps, by rank."""
    steps = {
        rank: [at(number, number + own, number + 1.0) for number, own in enumerate(late, 1)]
        for rank, late in arrivals.items()
    }
    skew = skew_of(meetings_of(steps), steps)
    assert skew is not None
    return skew


def test_step_times_would_not_have_found_the_slow_rank(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, slow_rank=2))
    means = {rank.rank: statistics.fmean(step.end - step.begin for step in rank.steps) for rank in run.ranks}
    assert max(means.values()) - min(means.values()) < 1e-6, "all steps are equally long"
    steps = run.after(5)
    skew = skew_of(meetings_of(steps), steps)
    assert skew is not None
    arrival = arrival_of(skew, seed=0)
    assert arrival.slow_rank == 2
    assert arrival.ranks[2].last_share > 0.95
    assert arrival.ranks[2].lateness_mean == pytest.approx(0.015, abs=0.003)
    assert arrival.ranks[2].step_mean == pytest.approx(arrival.ranks[0].step_mean, abs=1e-6)
    assert arrival.sentence.startswith("rank 2 arrived last in 100% of the steps, 1")
    assert arrival.sentence.endswith("is as long as that of the others")


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_delay_that_hits_anyone_names_nobody(tmp_path: Path, ranks: int, seed: int) -> None:
    skew = skew_in(tmp_path, ranks=ranks, steps=200, slow_rank=None, one_of=0.030, seed=seed)
    assert skew.slow == ()
    assert sentence_of(skew).startswith("no rank is significantly slower than the others; the last one arrives 3")
    assert skew.last_median == pytest.approx(0.030, abs=0.004)


def test_a_rank_that_is_last_by_little_is_not_slow() -> None:
    skew = skew_by({0: [0.0] * 50, 1: [0.0] * 50, 2: [0.02] * 50})
    assert skew.ranks[2].is_often_last and skew.ranks[2].last_share == 1.0
    assert skew.slow == (), "20 ms of a step of 1 s is not much"
    more = skew_by({0: [0.0] * 50, 1: [0.0] * 50, 2: [0.06] * 50})
    assert [rank.rank for rank in more.slow] == [2]


def test_few_steps_name_nobody() -> None:
    assert skew_by({0: [0.0] * 5, 1: [0.3] * 5}).slow == ()
    assert [rank.rank for rank in skew_by({0: [0.0] * 20, 1: [0.3] * 20}).slow] == [1]


def test_a_rank_that_is_late_now_and_then_is_told_of() -> None:
    now_and_then = [0.5 if number % 20 < 9 else 0.0 for number in range(100)]
    skew = skew_by({0: [0.01, 0.0] * 50, 1: [0.0, 0.01] * 50, 2: [0.0, 0.005] * 50, 3: now_and_then})
    assert skew.slow == ()
    assert "rank 3 is last in 45% of them (25% by chance), up to 0.500 s after the first" in sentence_of(skew)


def test_several_slow_ranks_are_named_together() -> None:
    first, second = [0.30, 0.31] * 30, [0.31, 0.30] * 30
    skew = skew_by({0: [0.0] * 60, 1: first, 2: [0.01] * 60, 3: second, 4: [0.0] * 60})
    assert {rank.rank for rank in skew.slow} == {1, 3}
    assert sentence_of(skew).startswith("ranks 1 and 3 arrived last, or among the last, in up to 50% of the steps")
    assert [rank.rank for rank in skew.others] == [0, 2, 4]


def test_ranks_that_are_equally_late_are_both_last() -> None:
    """Most of the ranks are slow by the same factor, as in a virtual world."""
    skew = skew_by({rank: [0.3 * (rank >= 3)] * 30 for rank in range(8)})
    assert [rank.rank for rank in skew.slow] == [3, 4, 5, 6, 7]
    assert [rank.last_share for rank in skew.ranks] == [0.0] * 3 + [1.0] * 5
    assert sentence_of(skew).startswith("5 of 8 ranks arrived last, or among the last, in up to 100% of the steps")


def test_nobody_is_last_where_all_come_at_once() -> None:
    skew = skew_by({0: [0.2] * 30, 1: [0.2] * 30})
    assert [rank.last_share for rank in skew.ranks] == [0.0, 0.0]
    finding = "no rank is significantly slower than the others; the last one arrives 0 µs after the first (median)"
    assert sentence_of(skew) == finding


def test_a_step_time_that_differs_is_not_called_like_everyones() -> None:
    steps = {
        0: [at(number, number + 0.1, number + 1.0) for number in range(1, 41)],
        1: [at(number, number + 0.9, number + 1.0, begin=number - 0.5) for number in range(1, 41)],
    }
    skew = skew_of(meetings_of(steps), steps)
    assert skew is not None
    assert sentence_of(skew).endswith("its mean step, 1.50 s, differs from that of the others, 1.00 s")


def test_where_nobody_waits_a_rank_is_slow_by_its_own_pace(tmp_path: Path) -> None:
    skew = skew_in(tmp_path / "slow", waits=False, steps=120)
    assert not skew.is_together and [rank.rank for rank in skew.slow] == [3]
    assert sentence_of(skew).startswith("the workers do not all wait for each other: rank 3 needs 3")
    assert sentence_of(skew).endswith(" per step, 1.7x the others")


def apart(steps: Mapping[int, Sequence[Step]], every: Mapping[int, Sequence[Step]] | None = None) -> Skew:
    skew = skew_of(meetings_of(steps, is_together=False), steps, every)
    assert skew is not None
    return skew


def test_where_nobody_waits_lateness_is_what_it_would_have_been(tmp_path: Path) -> None:
    """Rank 1 is at work for 0.7 s instead of 0.2, and takes only every other step; nobody waits."""
    steps = {
        0: [at(number, number + 0.2, number + 0.2, begin=float(number)) for number in range(1, 41)],
        1: [at(number, 2 * number + 0.7, 2 * number + 0.8, begin=2.0 * number) for number in range(1, 21)],
    }
    skew = apart(steps)
    assert skew.columns == tuple(range(1, 21)), "the steps that both have taken"
    assert [rank.mean for rank in skew.ranks] == pytest.approx([0.0, 0.5])
    assert [rank.last_share for rank in skew.ranks] == [0.0, 1.0]
    assert [rank.rank for rank in skew.slow] == [1]
    arrival = arrival_of(skew, seed=0)
    assert not arrival.is_together and arrival.heat[1] == pytest.approx((0.5,) * 20)
    assert arrival.sentence.endswith("rank 1 needs 0.700 s per step, 3.5x the others")


def test_who_waits_long_is_not_slow() -> None:
    """Both are at work for as long; under its quorum rank 1 waits."""
    steps = {
        rank: [at(n, n + 0.3 + 0.01 * ((n + rank) % 2), n + 0.4 + 0.5 * rank, begin=float(n)) for n in range(1, 41)]
        for rank in range(2)
    }
    skew = apart(steps)
    assert skew.slow == ()
    assert sentence_of(skew).endswith(
        "if all had waited, the last one would have arrived 10.0 ms after the first (median)"
    )


def test_steps_after_an_evaluation_are_work_as_any_other() -> None:
    """Each rank has other steps that measure; what they were at work for is known of all."""
    every = {rank: [at(n, n + 0.2 + rank / 2, n + 0.9, begin=float(n)) for n in range(1, 41)] for rank in range(2)}
    steps = {rank: [step for step in own if step.step % 2 == rank] for rank, own in every.items()}
    for own in every[0][::2]:  # those of rank 0 that do not measure
        own.arrive += 0.1
    assert [rank.mean for rank in apart(steps, every).ranks] == pytest.approx([0.0, 0.45])
    assert [rank.mean for rank in apart(steps).ranks] == pytest.approx([0.0, 0.5]), "the first with the first, in order"


@pytest.mark.parametrize("waits", [True, False])
def test_columns_of_the_heat_map_rise(tmp_path: Path, waits: bool) -> None:
    columns = skew_in(tmp_path, waits=waits, steps=400).columns
    assert list(columns) == sorted(set(columns)) and len(columns) > 80


def test_a_rank_that_comes_later_does_not_turn_columns_back() -> None:
    old = [at(number, number + 0.1, number + 1.0) for number in range(1, 61)]
    new = [at(number, number + 40.3, number + 41.0, round=number + 40) for number in range(1, 21)]
    steps = {0: old, 1: list(old), 2: new}
    skew = skew_of(meetings_of(steps), steps)
    assert skew is not None and list(skew.columns) == sorted(skew.columns) and skew.columns[-1] == 40


def test_ranks_that_end_early_are_not_missed() -> None:
    steps = {rank: [at(n, n + 0.1 * rank, n + 1.0) for n in range(1, 61 if rank else 21)] for rank in range(3)}
    meetings = meetings_of(steps)
    assert meetings.is_together and len(meetings.complete) == 60
    skew = skew_of(meetings, steps)
    assert skew is not None and skew.ranks[2].last_share == 1.0


def test_steps_within_a_round_meet_in_order() -> None:
    steps = {rank: [at(n, float(n), n + 1.0, round=n // 2) for n in range(2, 8)] for rank in range(2)}
    assert list(meetings_of(steps).steps) == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]


def test_the_heat_map_has_a_row_per_rank_and_few_columns(tmp_path: Path) -> None:
    skew = skew_in(tmp_path, steps=305, evaluate_every=0)
    assert skew.columns == tuple(range(6, 306, 3))
    assert len(skew.columns) <= COLUMNS
    assert [len(row) for row in skew.heat] == [100] * 4
    mean = statistics.fmean(late for late in skew.heat[3] if late is not None)
    assert mean == pytest.approx(skew.ranks[3].mean, abs=1e-6)


def test_alone_there_is_no_skew(tmp_path: Path) -> None:
    steps = read_run(make_run(tmp_path, ranks=1)).after(0)
    assert skew_of(meetings_of(steps), steps) is None
    assert skew_of(meetings_of({}), {}) is None
