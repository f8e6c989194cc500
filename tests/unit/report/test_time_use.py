"""The uses of the time of steps, by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quorate.records.rows import Step
from quorate.report.figures.lateness import meetings_of
from quorate.report.figures.time_use import ACTIVITIES, Spent, share_of, spent_in
from quorate.report.reading.rounds import last_arrivals
from quorate.report.reading.run import read_run
from quorate.report.topics.steps import BINS, StepLengths, edges_for, step_times, totals_of
from quorate.report.topics.timeline import LANES, LEAST_STEPS, ROUNDS, STEPS, by_rank, timeline_of
from tests.support.made_records import make_run


def step(begin: float, arrive: float, end: float, **more: Any) -> Step:
    return Step(step=1, optimizer="1", round=1, begin=begin, arrive=arrive, end=end, **more)


def by(spent: Spent) -> dict[str, float]:
    return dict(zip(ACTIVITIES, spent.by, strict=True))


def in_folder(folder: Path, **changes: Any) -> list[Spent]:
    return spent_in(meetings_of(read_run(make_run(folder, **changes)).after(5)))


def test_waiting_ends_when_the_last_one_arrives() -> None:
    parts: dict[str, Any] = {"data": 0.5, "encode": 0.25, "update": 0.5}
    early = step(0.0, 1.0, 6.0, compute=0.5, wait=4.0, **parts)
    late = step(0.0, 4.0, 6.0, compute=2.5, delay=1.0, wait=1.0, **parts)
    first, second = (by(spent) for spent in spent_in(meetings_of({0: [early], 1: [late]})))
    assert first == {
        "data": 0.5, "compute": 0.5, "pace": 0.0, "delay": 0.0, "encode": 0.25, "waiting": 3.0, "communication": 1.0,
        "decode": 0.0, "update": 0.5, "other": 0.25,
    }  # fmt: skip
    assert (second["waiting"], second["communication"]) == (0.0, 1.0)
    assert (second["delay"], second["other"]) == (1.0, 0.25)


def test_a_pace_is_no_lateness() -> None:
    (paced,) = spent_in(meetings_of({0: [step(0.0, 4.0, 4.0, compute=1.0, delay=3.0, pace=2.0)]}))
    assert (by(paced)["compute"], by(paced)["pace"], by(paced)["delay"]) == (1.0, 2.0, 1.0)
    (odd,) = spent_in(meetings_of({0: [step(0.0, 4.0, 4.0, delay=1.0, pace=2.0)]}))
    assert (by(odd)["pace"], by(odd)["delay"]) == (1.0, 0.0), "it is a part of the delay"


def test_waiting_is_never_more_than_the_wait() -> None:
    early, late = step(0.0, 1.0, 6.0, wait=2.0), step(0.0, 5.0, 6.0, wait=0.5)
    first, second = (by(spent) for spent in spent_in(meetings_of({0: [early], 1: [late]})))
    assert (first["waiting"], first["communication"]) == (2.0, 0.0)
    assert (second["waiting"], second["communication"]) == (0.0, 0.5)


def test_alone_nobody_is_waited_for() -> None:
    (only,) = spent_in(meetings_of({0: [step(0.0, 1.0, 3.0, wait=2.0, compute=1.0)]}))
    assert (by(only)["waiting"], by(only)["communication"]) == (0.0, 2.0)


def test_parts_that_are_more_than_the_whole_are_made_to_fit() -> None:
    (only,) = spent_in(meetings_of({0: [step(0.0, 2.0, 4.0, compute=6.0, update=2.0)]}))
    assert by(only)["compute"] == 3.0 and by(only)["update"] == 1.0 and by(only)["other"] == 0.0


def test_shares_add_up_to_the_mean_step(tmp_path: Path) -> None:
    spent = in_folder(tmp_path)
    lengths = sorted(times.seconds for times in spent)
    step_summary = step_times([StepLengths(lengths, totals_of(spent), edges_for([lengths]))])
    assert step_summary is not None
    assert sum(step_summary.shares.values()) == pytest.approx(step_summary.mean)
    assert list(step_summary.shares) == list(ACTIVITIES)
    assert step_summary.shares["communication"] == pytest.approx(0.003, abs=0.0005)
    assert step_summary.shares["delay"] == pytest.approx(0.015 / 4)
    assert share_of("waiting", spent) == pytest.approx(step_summary.shares["waiting"] / step_summary.mean)
    assert step_summary.p50 <= step_summary.p95 <= step_summary.p99
    assert step_summary.count == len(lengths) == sum(step_summary.counts) == 4 * 50, "five steps come after evaluations"


def test_the_histogram_has_bins_for_all_arms_and_keeps_the_tail() -> None:
    quick, slow = [0.010] * 99 + [5.0], [0.030] * 100
    edges = edges_for([quick, slow, []])
    assert len(edges) == BINS + 1 and edges[0] == 0.010 and edges[-1] < 0.1
    step_summary = step_times([StepLengths(quick, [0.0] * len(ACTIVITIES), edges)])
    assert step_summary is not None and step_summary.counts[0] == 99 and step_summary.counts[-1] == 1


def test_a_histogram_of_equal_steps_has_one_bar_inside() -> None:
    lengths = [0.030300, 0.030301] * 10
    edges = edges_for([sorted(lengths)])
    step_summary = step_times([StepLengths(sorted(lengths), [0.0] * len(ACTIVITIES), edges)])
    assert step_summary is not None and sorted(step_summary.counts)[-1] == 20
    assert edges[0] < 0.0303 < edges[-1]


def test_without_steps_there_is_nothing() -> None:
    assert edges_for([[], []]) == ()
    assert step_times([StepLengths([], [])]) is None
    assert share_of("waiting", []) is None
    assert timeline_of({}, None) == ((), ())


def test_the_timeline_shows_consecutive_steps_end_to_end(tmp_path: Path) -> None:
    lanes, marks = timeline_of(by_rank(in_folder(tmp_path, evaluate_every=0)), slow_rank=3)
    assert marks == ()
    assert [lane.rank for lane in lanes] == [0, 1, 2, 3]
    for lane in lanes:
        assert sum(activity == "update" for activity, _, _ in lane.spans) == STEPS
        assert lane.spans[0][1] == 0.0
        for (_, _, end), (_, begin, _) in zip(lane.spans, lane.spans[1:], strict=False):
            assert begin == pytest.approx(end, abs=3e-6)
    waited = [{activity for activity, _, _ in lane.spans} for lane in lanes]
    assert "waiting" in waited[0] and "waiting" not in waited[3] and "delay" in waited[3]


def test_the_timeline_is_where_steps_are_usual() -> None:
    """The middle one in length of three windows of 20 steps is shown."""
    ends = [0.0]
    for number in range(22):
        ends.append(ends[-1] + (9.0 if number == 0 else 2.0 if number == 1 else 1.0))
    steps = [
        Spent(0, step(begin, end, end), (end - begin,) + (0.0,) * (len(ACTIVITIES) - 1))
        for begin, end in pairwise(ends)
    ]
    (lane,), _ = timeline_of({0: steps}, None)
    assert lane.spans[0] == ("data", 0.0, 2.0) and lane.spans[-1][2] == 21.0


def test_the_slow_rank_is_in_the_timeline(tmp_path: Path) -> None:
    steps = by_rank(in_folder(tmp_path, ranks=24, slow_rank=20, steps=30))
    assert [lane.rank for lane in timeline_of(steps, 20)[0]] == [*range(LANES - 1), 20]
    assert [lane.rank for lane in timeline_of(steps, None)[0]] == list(range(LANES))


def test_rounds_are_marked_in_the_timeline(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, strategy="quorum", waits=False, evaluate_every=0))
    merged = run.merged()
    steps = by_rank(spent_in(meetings_of(run.warm(5)), last_arrivals(merged)))
    lanes, marks = timeline_of(steps, 3, merged)
    assert len(marks) == STEPS, "rank 0 calls for every round"
    assert [mark.number for mark in marks] == list(range(marks[0].number, marks[0].number + STEPS))
    end = max(stop for lane in lanes for *_, stop in lane.spans)
    assert all(0.0 <= mark.time <= end for mark in marks)
    by_number = {update.round.number: update for update in merged}
    computed = {(lane.rank, stop) for lane in lanes for name, _, stop in lane.spans if name == "compute"}
    for mark in marks:
        assert len(mark.given) == by_number[mark.number].round.gradients
        for rank, arrive, staleness in mark.given:
            assert arrive <= mark.time and staleness >= 0
            if arrive > 0.0:
                assert min(abs(arrive - stop) for other, stop in computed if other == rank) < 3e-6
    assert any(rank == 3 and staleness > 0 for mark in marks for rank, _, staleness in mark.given)


def test_where_rounds_are_dense_fewer_steps_are_shown(tmp_path: Path) -> None:
    """Rank 0 takes 6 times as long for a step as the rank that calls for rounds."""
    run = read_run(make_run(tmp_path, strategy="quorum", waits=False, evaluate_every=0, slow_rank=0, slow=0.100))
    merged = run.merged()
    steps = by_rank(spent_in(meetings_of(run.warm(2)), last_arrivals(merged)))
    lanes, marks = timeline_of(steps, 0, merged)
    shown = sum(name == "update" for name, *_ in lanes[0].spans)
    assert LEAST_STEPS < shown < 10 and 0.8 * ROUNDS < len(marks) <= 1.1 * ROUNDS
