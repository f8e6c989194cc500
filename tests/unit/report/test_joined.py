"""Workers that joined a run under way, in what is said of it: their step 1 comes when the others are far beyond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.records.rows import Gone, Joined
from quorate.report.closing import closing_line, joined_in_words
from quorate.report.figures.lateness import meetings_of, skew_of
from quorate.report.figures.run import comparable
from quorate.report.figures.throughput import window_of
from quorate.report.page import page
from quorate.report.reading.rank import is_newcomer
from quorate.report.reading.run import read_run, replaced_by
from quorate.report.reading.sound import row_of
from quorate.report.summary import summarize
from quorate.report.topics.joined import seconds_to_join
from quorate.report.topics.quality import losses_of
from quorate.report.trace import write_trace

START = {"kind": "start", "host": "h", "pid": 1, "clock": "monotonic", "wall": 1e9, "device": "cpu", "seed": 0}
ROW = {"kind": "joined", "time": 10.0, "rank": 2, "round": 10, "live": 2}
JOINING = Joined(time=10.0, rank=2, round=10, live=2)
DEATH = Gone(time=5.0, rank=1, host="h", reason="was killed", round=5, generation=1, left=1)
LAST = 20


def step(number: int, round: int, rank: int) -> dict[str, Any]:
    """One a second; that of rank 0 is at work for most of it."""
    begin, work = float(round - 1), 0.9 if rank == 0 else 0.5
    times = {"begin": begin, "arrive": begin + work, "end": float(round), "compute": work, "wait": 1.0 - work}
    return {"kind": "step", "step": number, "optimizer": "1", "round": round, **times, "examples": 8, "loss": 1.0}


def merged(number: int, ranks: list[int], live: int, stale: int) -> dict[str, Any]:
    contributors = {str(rank): [[0 if rank == ranks[0] else stale, 1]] for rank in ranks}
    return {
        "kind": "round",
        "number": number,
        "time": number,
        "weight": 1.0,
        "live": live,
        "contributors": contributors,
    }


def make(folder: Path, *, stale: int = 0) -> Path:
    """Rank 1 of two dies after 5 s of 20; rank 2 is started in its place, and trains from 10 s on."""
    steps = {0: range(1, LAST + 1), 1: range(1, 6), 2: range(11, LAST + 1)}
    for rank, rounds in steps.items():
        about = {**START, "rank": rank, "size": 2, "now": 8.0 if rank == 2 else 0.0}
        rows = [about | ({"seat": 1} if rank == 2 else {})]
        for number, round in enumerate(rounds, 1):
            there = [rank for rank, own in steps.items() if round in own]
            rows += [merged(round, there, len(there), stale)] if rank == 0 else []
            rows += [step(number, round, rank)]
            if rank == 0 and round in (5, 10):
                death = {"kind": "gone", "rank": 1, "host": "h", "reason": "was killed", "generation": 1}
                rows += [ROW if round == 10 else {**death, "time": 5.0, "round": 5, "left": 1}]
        (folder / f"rank-{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.json").write_text(json.dumps({"command": ["quorate"], "workers": 2}))
    (folder / "outcome.json").write_text(json.dumps({"status": 0, "seconds": 25.0, "why": None}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path)


def test_they_are_read_and_said(folder: Path) -> None:
    run = read_run(folder)
    assert (run.joinings, run.newcomers) == ([JOINING], {2})
    assert [(joining, death and death.rank) for joining, death in run.replacements] == [(JOINING, 1)]
    line = closing_line(folder) or ""
    assert "rank 2 joined in round 10, 5.00 s after rank 1 had died; 2 workers train since" in line
    assert "1.7 of 1 to 2 workers in each" in line
    assert "rank 0 arrived last" in line, "rank 2 is held against the others by its rounds, not by its steps"
    (joining,) = summarize(folder).arms[0].joined
    assert (joining.rank, joining.replaced, joining.seconds, joining.round, joining.waited, joining.live) == (
        2,
        1,
        10.0,
        10,
        5.0,
        2,
    )


def test_what_they_did_counts_from_when_they_came(folder: Path) -> None:
    window = window_of(read_run(folder), warm_up=2)
    assert window is not None
    assert (window.begin, window.end) == (2.0, 20.0), "neither the death nor the joining cuts it short"
    assert window.steps == 18 + 3 + 10 and window.workers == pytest.approx(31 / 18)
    assert window.examples_per_second == pytest.approx(8 * 31 / 18)
    assert window.no_wait_rate == pytest.approx(8 / 0.9 + 8 / 0.5 * 13 / 18)


def test_steps_of_equal_number_are_those_of_who_was_there(tmp_path: Path) -> None:
    run = read_run(make(tmp_path, stale=1))
    steps = run.warm(0)
    skew = skew_of(meetings_of(steps, is_together=False), steps, steps, run.newcomers)
    assert skew is not None and [rank.rank for rank in skew.ranks] == [0, 1]
    (arm,) = summarize(tmp_path).arms
    assert arm.arrival is not None and [rank.rank for rank in arm.arrival.ranks] == [0, 1]
    assert arm.rounds is not None and arm.rounds.live == (1, 2)
    gradients = [gradient for each in run.merged() for gradient in each.gradients if gradient.rank == 2]
    assert [gradient.step.step for gradient in gradients][:2] == [1, 2], (
        "its first step was computed on a copy, not on round 0"
    )


def test_columns_of_the_heat_map_count_as_the_others_do(folder: Path) -> None:
    steps = read_run(folder).warm(0)
    skew = skew_of(meetings_of(steps, is_together=True), steps, steps, {2})
    assert skew is not None and skew.columns == (1, 2, 3, 4, 5, *range(11, LAST + 1))


def test_what_was_evaluated_before_is_no_training_time_of_theirs(folder: Path) -> None:
    path = folder / "rank-0.jsonl"
    path.write_text(path.read_text() + json.dumps({"kind": "evaluate", "step": 7, "begin": 7.0, "end": 8.0}) + "\n")
    run = read_run(folder)
    assert run.ranks[2].training_seconds(12.0, run.begin) == run.ranks[0].training_seconds(12.0, run.begin) == 11.0
    losses = losses_of(run, 0)
    assert losses is not None and losses.seconds[-1] == 19.0


def test_the_page_and_the_timeline_tell_of_them(folder: Path) -> None:
    shown = page(summarize(folder))
    assert "Workers that joined" in shown and "5.00 s, after that death" in shown
    write_trace(folder, folder / "trace.json")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert [(e["name"], e["ts"]) for e in events if e["name"].startswith("rank ") and e["ph"] == "i"] == [
        ("rank 1 died", 5_000_000),
        ("rank 2 joined", 10_000_000),
    ]


def test_a_row_that_lacks_something_is_none() -> None:
    assert row_of(Joined, ROW) == JOINING
    for key in ("time", "rank", "round", "live"):
        assert row_of(Joined, {name: value for name, value in ROW.items() if name != key}) is None
        assert row_of(Joined, {**ROW, key: "x"}) is None


def test_whose_place_it_has_and_since_when() -> None:
    starts = {2: {"rank": 2, "size": 2, "seat": 1, "now": 8.0}, 3: {"seat": 1}, 4: {"seat": 2}, 5: {}}
    again = Gone(time=12.0, rank=2, host="h", reason="was killed", round=12, generation=1, left=1)
    later = Joined(time=15.0, rank=3, round=15, live=2)
    assert replaced_by(JOINING, [DEATH, again], starts, 2) == DEATH
    assert replaced_by(later, [DEATH, again], starts, 2) == again, "rank 2 had the seat of rank 1"
    for asked_for in (4, 5):
        assert replaced_by(Joined(time=15.0, rank=asked_for, round=15, live=2), [DEATH, again], starts, 2) is None
    assert seconds_to_join(JOINING, DEATH, starts[2]) == 5.0
    assert seconds_to_join(JOINING, None, starts[2]) == 2.0
    assert seconds_to_join(JOINING, None, {}) is None
    assert joined_in_words(JOINING, None) == "rank 2 joined in round 10; 2 workers train since"
    assert is_newcomer(starts[2]) and not is_newcomer({"rank": 1, "size": 2}) and not is_newcomer({})


def test_one_of_a_run_that_was_resumed_is_another_one(folder: Path) -> None:
    path = folder / "rank-2.jsonl"
    again = [{**START, "rank": 2, "size": 2, "now": 30.0, "seat": 1}, step(1, 31, 2)]
    path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in again))
    assert [step.round for step in read_run(folder).ranks[2].steps] == [*range(11, LAST + 1), 31]


@pytest.mark.parametrize("is_apart", [True, False])
def test_local_steps_of_a_newcomer_are_not_held_beside_those_of_the_others(tmp_path: Path, is_apart: bool) -> None:
    """Its numbers began elsewhere: it seems to come long before the others, or after."""
    run = read_run(make(tmp_path))
    steps = {rank: list(own) for rank, own in run.after(0).items()}
    compared = comparable(steps, run.newcomers, [{}, {"strategy": "local-sgd", "replicas_differ": is_apart}])
    assert compared == {rank: own for rank, own in steps.items() if rank < 2 or not is_apart}


def test_so_the_closing_line_blames_nobody_for_it(tmp_path: Path) -> None:
    first = make(tmp_path) / "rank-0.jsonl"
    (tmp_path / "rank-1.jsonl").write_text(first.read_text().replace('"rank": 0', '"rank": 1'))  # it does not die here
    for path in tmp_path.glob("rank-*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row for row in rows if row["kind"] not in ("round", "gone")]
        for row in rows:
            if row["kind"] == "step" and path.stem == "rank-2":
                row["round"] -= 2
        rows.insert(1, {"kind": "distribute", "optimizer": "1", "strategy": "local-sgd", "replicas_differ": True})
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = closing_line(tmp_path)
    assert line is not None and "no rank is significantly slower" in line
