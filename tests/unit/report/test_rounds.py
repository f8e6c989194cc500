"""Rounds, and the steps their gradients came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorate.records.records import records_of
from quorate.records.rows import Step
from quorate.report.figures.lateness import meetings_of, side_by_side, waiting_in_step
from quorate.report.figures.rounds import figures_of_rounds
from quorate.report.figures.throughput import window_of
from quorate.report.figures.time_use import ACTIVITIES, spent_in
from quorate.report.reading.rounds import (
    Merged,
    RoundRecord,
    last_arrivals,
    merged_in,
    number_the_rest,
    number_updates,
    round_of,
    take_back,
    wait_for_all,
)
from quorate.report.reading.run import RunRecords, read_run
from tests.support.made_records import make_run

WAITING = ACTIVITIES.index("waiting")


def at(step: int, arrive: float, end: float, round: int, **more: Any) -> Step:
    """A step that begins where one of a second would have begun."""
    return Step(
        **{"step": step, "optimizer": "1", "round": round, "begin": end - 1.0, "arrive": arrive, "end": end, **more}
    )


def a_round(number: int, time: float, taken: Mapping[int, Sequence[tuple[int, int]]], **more: Any) -> RoundRecord:
    weight = float(sum(count for pairs in taken.values() for _, count in pairs))
    return RoundRecord(
        **{"number": number, "time": time, "weight": weight, "live": 2, "taken": taken, "update": number, **more}
    )


def steps_of(merged: Merged) -> list[tuple[int, int, int]]:
    """(rank, step, staleness)"""
    return [(gradient.rank, gradient.step.step, gradient.staleness) for gradient in merged.gradients]


def by_hand() -> tuple[list[RoundRecord], dict[int, list[Step]]]:
    """Rank 1 takes twice as long as rank 0, which calls for every round; its first gradient is one round late."""
    rounds = [
        a_round(1, 1.05, {0: [(0, 1)]}),
        a_round(2, 2.05, {0: [(0, 1)], 1: [(1, 1)]}),
        a_round(3, 3.05, {0: [(0, 1)]}),
        a_round(4, 4.05, {0: [(0, 1)], 1: [(2, 1)]}),
    ]
    fast = [at(number, number, number + 0.1, number) for number in range(1, 5)]
    slow = [at(1, 1.9, 1.95, 1), at(2, 3.9, 3.95, 3)]
    return rounds, {0: fast, 1: slow}


def test_gradients_are_found_among_the_steps_by_their_staleness() -> None:
    merged = merged_in(*by_hand(), {})
    assert [steps_of(update) for update in merged] == [
        [(0, 1, 0)],
        [(0, 2, 0), (1, 1, 1)],
        [(0, 3, 0)],
        [(0, 4, 0), (1, 2, 2)],
    ]
    assert last_arrivals(merged) == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}


def test_what_was_dropped_is_in_no_round() -> None:
    rounds, steps = by_hand()
    rounds[1] = a_round(2, 2.05, {0: [(0, 1)]})
    merged = merged_in(rounds, steps, {})
    assert steps_of(merged[1]) == [(0, 2, 0)]
    assert steps_of(merged[3]) == [(0, 4, 0), (1, 2, 2)], "not the first one of rank 1, which is older"


def test_a_round_was_there_when_the_first_replica_had_it() -> None:
    rounds, steps = by_hand()
    for record in rounds[:3]:
        record.time = 3.05  # rank 0 applies three at once
    steps[0], steps[1] = steps[1], steps[0]
    assert [update.formed for update in merged_in(rounds, steps, {})] == [1.1, 2.1, 3.05, 4.05]


def test_a_round_without_weight_is_no_update() -> None:
    empty = a_round(2, 1.5, {}, update=1)
    late = a_round(3, 2.0, {1: [(1, 1)], 0: [(0, 1)]}, update=2)
    rounds = [a_round(1, 1.0, {0: [(0, 1)]}), empty, late]
    steps = {0: [at(1, 0.9, 1.1, 1), at(2, 1.9, 2.1, 2)], 1: [at(1, 0.5, 1.2, 1), at(2, 1.8, 2.2, 2)]}
    merged = merged_in(rounds, steps, {})
    assert [update.round.number for update in merged] == [1, 3]
    assert steps_of(merged[1]) == [(0, 2, 0), (1, 2, 1)], "computed on round 1, although round 2 had gone by"


def test_after_an_evaluation_the_parameters_may_be_newer() -> None:
    rounds = [
        a_round(1, 1.0, {0: [(0, 1)]}),
        a_round(2, 1.5, {1: [(1, 1)]}),
        a_round(3, 2.5, {0: [(0, 1)], 1: [(0, 1)]}),
    ]
    steps = {0: [at(1, 0.9, 1.1, 1), at(2, 2.3, 2.6, 3)], 1: [at(1, 1.2, 1.3, 1), at(2, 2.4, 2.6, 3)]}
    merged = merged_in(rounds, steps, {0: {2}, 1: {2}})
    assert steps_of(merged[2]) == [(0, 2, 0), (1, 2, 0)]
    assert not merged_in(rounds, steps, {})[2].gradients


def test_updates_are_counted_back_from_a_step_and_on_from_the_last() -> None:
    rounds = [a_round(number, 1.0, {0: [(0, 1)]} if number != 3 else {}, update=None) for number in (1, 2, 3, 4, 8, 9)]
    number_updates(rounds[:3], at(1, 1.0, 1.0, 7))
    assert [record.update for record in rounds[:3]] == [6, 7, 7]
    number_updates(rounds[3:5], at(2, 1.0, 1.0, 12))
    assert [record.update for record in rounds[3:5]] == [None, 12], "rows are missing in between"
    number_the_rest(rounds)
    assert [record.update for record in rounds] == [6, 7, 7, 8, 12, 13]


def test_what_came_to_nothing_is_taken_back() -> None:
    """Rank 0 was copied from a replica that had not gone so far."""
    rounds: list[RoundRecord] = []
    for number, weight in [(1, 1.0), (2, 1.0), (3, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]:
        new = RoundRecord(number, 0.1 * number, weight, 2, {0: [(0, 1)]}, None)
        take_back(rounds, new)
        rounds.append(new)
    assert [(record.number, record.weight) for record in rounds] == [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"number": 1, "time": 1.0, "weight": 1.0, "live": 4},
        {"number": 1, "time": 1.0, "weight": 1.0, "live": 4, "contributors": [1]},
        {"number": 1, "time": 1.0, "weight": 1.0, "live": 4, "contributors": {"0": [[1]]}},
        {"number": 1, "time": None, "weight": 1.0, "live": 4, "contributors": {}},
    ],
    ids=str,
)
def test_rows_that_cannot_be_read_are_none(row: dict[str, Any]) -> None:
    assert round_of(row) is None


def test_later_formats_may_say_more() -> None:
    row = {"number": 5, "time": 1, "weight": 2.0, "live": 3, "contributors": {"2": [[1, 4], [0, 1]]}, "colour": "red"}
    record = round_of(row)
    assert record is not None and record.is_applied and record.gradients == 5
    assert record.taken == {2: [(1, 4), (0, 1)]}


RUNS: list[dict[str, Any]] = [
    {},
    {"slow_rank": 0},
    {"slow_rank": None},
    {"evaluate_every": 0},
    {"ranks": 7, "slow": 0.2},
    {"clocks": (("tower", 1000.0), ("castle", 7.0))},
]


def quorum_in(folder: Path, **changes: Any) -> RunRecords:
    return read_run(make_run(folder, strategy="quorum", waits=False, **changes))


@pytest.mark.parametrize("changes", RUNS, ids=str)
def test_every_gradient_is_in_one_round(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = quorum_in(tmp_path, **changes)
    merged = run.merged()
    gradients = [(gradient.rank, gradient.step.step) for update in merged for gradient in update.gradients]
    assert sorted(gradients) == sorted((rank.rank, step.step) for rank in run.ranks for step in rank.steps)
    for update in merged:
        assert len(update.gradients) == update.round.gradients
        assert all(gradient.step.arrive <= update.formed for gradient in update.gradients)
    assert [update.formed for update in merged] == sorted(update.formed for update in merged)
    assert [update.round.update for update in merged] == list(range(1, len(merged) + 1))


def test_of_a_long_run_the_end_is_enough(tmp_path: Path) -> None:
    whole = {update.round.number: update for update in quorum_in(tmp_path, steps=400).merged()}
    part = read_run(tmp_path, most_bytes=40_000).merged()
    assert 20 < len(part) < 200
    assert all(update.round.update == whole[update.round.number].round.update for update in part[1:])
    later = [update for update in part if update.round.number > part[-1].round.number - 40]
    assert [steps_of(update) for update in later] == [steps_of(whole[update.round.number]) for update in later]


def test_damaged_rows_are_skipped(tmp_path: Path) -> None:
    quorum_in(tmp_path)
    path = records_of(tmp_path, 0)
    path.write_text(path.read_text().replace('"kind":"round","number":9,', '"kind":"round","numb":9,'))
    numbers = [update.round.number for update in read_run(tmp_path).merged()]
    assert 8 in numbers and 9 not in numbers and 10 in numbers


def test_rounds_of_another_optimizer_are_apart(tmp_path: Path) -> None:
    quorum_in(tmp_path, steps=20)
    path = records_of(tmp_path, 0)
    lines = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        lines.append(json.dumps({**row, "optimizer": "1"} if row["kind"] == "round" else row))
        if row["kind"] == "round":
            lines.append(json.dumps({**row, "optimizer": "2", "number": row["number"] + 5}))
    path.write_text("\n".join(lines) + "\n")
    merged = read_run(tmp_path).merged()
    assert [update.round.update for update in merged] == list(range(1, len(merged) + 1))
    assert {update.round.optimizer for update in merged} == {"1"}


def test_nearly_every_round_of_all_workers_is_waiting_for_all() -> None:
    everyone = [a_round(number, 1.0, {0: [(0, 1)], 1: [(1, 1), (0, 1)]}) for number in range(1, 9)]
    some = [a_round(number, 1.0, {0: [(0, 1)], 1: [(1, 1)]}) for number in range(9, 12)]
    assert wait_for_all([Merged(record, 1.0) for record in (*everyone, *some[:2])])
    assert not wait_for_all([Merged(record, 1.0) for record in (*everyone, *some)])
    assert not wait_for_all([])


# In step


def test_what_would_have_been_waiting_in_step() -> None:
    fast = [at(n, n + 0.2, n + 1.0, n, begin=n, wait=0.7) for n in range(1, 4)]
    slow = [at(n, n + 0.8, n + 1.0, n, begin=n, wait=0.1) for n in range(2, 6)]
    assert list(side_by_side({0: fast, 1: slow})) == [2, 3]
    assert waiting_in_step({0: fast, 1: slow}) == pytest.approx(0.6 / (0.8 + 0.1 + 0.8 + 0.1))
    assert waiting_in_step({0: fast}) is None
    assert waiting_in_step({0: fast[:1], 1: slow}) is None


def test_the_longest_may_be_another_one_in_every_step() -> None:
    """One second in turn, for either of two: half of the others' time."""
    steps = {
        rank: [at(n, n + 0.5 + 0.5 * (n % 2 == rank), n + 1.0, n, begin=n) for n in range(1, 9)] for rank in (0, 1)
    }
    for own in steps.values():
        for step in own:
            step.end = step.arrive
    assert waiting_in_step(steps) == pytest.approx(0.25)


# Figures


def test_figures_by_hand() -> None:
    rounds, steps = by_hand()
    rounds[3] = a_round(4, 4.05, {0: [(0, 1)], 1: [(2, 2), (0, 1)]})
    figures = figures_of_rounds(merged_in(rounds, steps, {}), 2, None, {0: [at(1, 1.0, 1.1, 1, examples=6)]}, [])
    assert figures is not None
    assert figures.contributors == {1: 2, 2: 2} and figures.contributors_mean == 1.5
    assert figures.staleness == {0: 5, 1: 1, 2: 2} and figures.ranks == {0: 4, 1: 4}
    assert figures.fresh_share == 5 / 8
    assert figures.effective_batch == 6 * 8 / 4
    assert (figures.count, figures.per_second, figures.waiting, figures.waiting_in_step) == (4, None, None, None)


def test_figures_of_a_run(tmp_path: Path) -> None:
    run = quorum_in(tmp_path, steps=100, evaluate_every=0)
    merged, window, steps = run.merged(), window_of(run, 5), run.warm(5)
    figures = figures_of_rounds(merged, 4, window, steps, [])
    assert figures is not None and window is not None
    assert figures.count == len(merged) > figures.rounds
    assert figures.per_second == pytest.approx(1 / 0.0249, rel=0.03), "one with every step of rank 0"
    assert figures.gradients == pytest.approx(window.steps, abs=5), "one of every step within"
    assert figures.ranks[3] < 0.7 * figures.ranks[0]
    assert figures.waiting_in_step == pytest.approx(0.29, abs=0.02)
    assert figures.effective_batch == pytest.approx(8 * figures.gradients / figures.rounds)


def test_without_rounds_there_are_no_figures(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path))
    assert run.merged() == []
    assert figures_of_rounds([], 4, window_of(run, 5), run.warm(5), []) is None


def test_examples_that_were_not_counted_make_no_batch(tmp_path: Path) -> None:
    run = quorum_in(tmp_path, counts_examples=False)
    figures = figures_of_rounds(run.merged(), 4, window_of(run, 5), run.warm(5), [])
    assert figures is not None and figures.effective_batch is None


# Where the time of a step went


def waiting_by(
    steps: Mapping[int, Sequence[Step]], last: Mapping[int, float]
) -> dict[tuple[int, int], tuple[float, float]]:
    """(waiting, communication) by rank and step."""
    return {
        (times.rank, times.step.step): (times.by[WAITING], times.by[WAITING + 1])
        for times in spent_in(meetings_of(steps), last)
    }


def test_who_came_after_a_round_was_not_waited_for() -> None:
    steps = {0: [at(1, 1.0, 1.5, 1, wait=0.5)], 1: [at(1, 1.4, 1.6, 1, wait=0.0)], 2: [at(1, 0.5, 1.5, 1, wait=1.0)]}
    waits = waiting_by(steps, {1: 1.0})
    assert waits[0, 1] == (0.0, 0.5), "rank 1 came at 1.4, when the round was on its way"
    assert waits[2, 1] == (0.5, 0.5) and waits[1, 1] == (0.0, 0.0)


def test_of_a_round_nobody_knows_nobody_is_said_to_have_waited() -> None:
    steps = {0: [at(1, 1.0, 1.5, 1, wait=0.5)], 1: [at(1, 1.4, 1.6, 1)]}
    assert waiting_by(steps, {})[0, 1] == (0.0, 0.5)
