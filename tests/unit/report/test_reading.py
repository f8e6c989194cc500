"""Whatever a run left behind is read, on one clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.records.records import records_of
from quorate.report.figures.throughput import training_seconds
from quorate.report.reading.clocks import RunClock, Shift, Spans
from quorate.report.reading.planned import planned_in
from quorate.report.reading.run import RunRecords, read_run
from tests.support.made_records import KILLED, make_run


def append(folder: Path, rank: int, *lines: str) -> None:
    with open(records_of(folder, rank), "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def step(number: int, begin: float, end: float, **more: Any) -> str:
    row = {"kind": "step", "step": number, "optimizer": "1", "round": number, "begin": begin, "arrive": end, "end": end}
    return json.dumps({**row, **more})


def written(folder: Path, *ranks: list[str]) -> RunRecords:
    folder.mkdir(exist_ok=True)
    for rank, lines in enumerate(ranks):
        append(folder, rank, *lines)
    return read_run(folder)


def test_a_whole_run(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, steps=20, evaluate_every=5))
    assert run.size == 4 and run.status == 0 and not run.is_virtual
    assert [len(rank.steps) for rank in run.ranks] == [20] * 4
    assert [step.step for step in run.ranks[2].steps] == list(range(1, 21))
    assert [log.step for log in run.ranks[0].logs] == [5, 10, 15, 20]
    assert all(rank.end is not None for rank in run.ranks)
    assert run.ranks[1].after_evaluation == {6, 11, 16}


def test_a_killed_rank_and_half_a_line(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, steps=20, fails_at=15))
    assert run.status == 1 and run.outcome is not None and run.outcome["why"] == KILLED
    assert [len(rank.steps) for rank in run.ranks] == [14] * 4
    assert [rank.end for rank in run.ranks] == [None] * 4


def test_nothing_at_all(tmp_path: Path) -> None:
    run = read_run(tmp_path / "nowhere")
    assert run.ranks == () and run.about == {} and run.outcome is None and run.size == 0
    assert not run.has_steps and run.after(0) == {}


@pytest.mark.parametrize("damage", ["{", "[]", "null", '"text"', '{"kind": "run"'])
def test_damaged_files_count_as_missing(tmp_path: Path, damage: str) -> None:
    make_run(tmp_path, steps=3)
    (tmp_path / "run.json").write_text(damage)
    (tmp_path / "outcome.json").write_text(damage)
    run = read_run(tmp_path)
    assert run.about == {} and run.status is None and run.size == 4 and run.has_steps


def test_damaged_rows_are_skipped(tmp_path: Path) -> None:
    lines = [
        "\x00\x00",
        '{"kind":"step"}',
        step(1, 0.0, 1.0).replace('"begin": 0.0', '"begin": null'),
        step(1, 0.0, 1.0),
        '{"kind":"log","step":1,"values":{}}',
        '{"kind":"evaluate","step":1,"begin":0}',
        '{"kind":"start"}',
        '{"kind":"something new","of":"later"}',
        step(2, 1.0, 2.0, wait=0.25, of_a_later_format=1),
        step(3, 2, 3),
    ]
    rank = written(tmp_path, lines).ranks[0]
    assert [(step.step, step.begin, step.wait) for step in rank.steps] == [(1, 0.0, 0.0), (2, 1.0, 0.25), (3, 2.0, 0.0)]
    assert rank.logs == [] and not rank.evaluations


def test_ranks_take_different_numbers_of_steps(tmp_path: Path) -> None:
    run = written(tmp_path, [step(1, 0.0, 1.0), step(2, 1.0, 2.0)], [], [step(1, 0.0, 1.0)])
    assert [len(rank.steps) for rank in run.ranks] == [2, 0, 1]
    assert set(run.after(0)) == {0, 2}
    assert set(run.after(1)) == {0}


def test_the_first_optimizer_gives_the_steps(tmp_path: Path) -> None:
    rows = [
        '{"kind":"distribute","optimizer":"generator"}',
        '{"kind":"distribute","optimizer":"critic"}',
        step(1, 0.0, 1.0, optimizer="critic", bytes_out=5),
        step(1, 0.0, 1.5, optimizer="generator", bytes_out=3),
    ]
    rank = written(tmp_path, rows).ranks[0]
    assert [(step.optimizer, step.end) for step in rank.steps] == [("generator", 1.5)]
    assert [(step.optimizer, step.bytes_out) for step in rank.others] == [("critic", 5)]


def test_clocks_of_several_hosts_are_aligned(tmp_path: Path) -> None:
    apart = (("tower", 1000.0), ("attic", 77.0))
    together = read_run(make_run(tmp_path / "one", steps=12))
    make_run(tmp_path / "two", steps=12, clocks=apart)
    append(tmp_path / "two", 1, '{"kind":"log","step":12,"time":78.5,"values":{}}')
    run = read_run(tmp_path / "two")
    assert run.ranks[1].logs[-1].time == pytest.approx(1001.5)
    for rank, other in zip(run.ranks, together.ranks, strict=True):
        for name in ("begin", "arrive", "end"):
            aligned, theirs = ([getattr(step, name) for step in some.steps] for some in (rank, other))
            assert aligned == pytest.approx(theirs, abs=1e-5)
        assert rank.evaluations.spans[0] == pytest.approx(other.evaluations.spans[0], abs=1e-5)
        assert rank.end is not None and other.end is not None and rank.end["time"] == pytest.approx(other.end["time"])


def test_evaluation_is_in_no_step(tmp_path: Path) -> None:
    """Wherever a recorder lets the step begin, and whatever it counts as computing."""
    after = '{"kind":"evaluate","step":1,"begin":1.0,"end":4.0}'
    first = step(1, 0.0, 1.0, compute=1.0)
    inside = written(tmp_path / "a", [first, after, step(2, 1.0, 6.0, compute=5.0)]).ranks[0]
    outside = written(tmp_path / "b", [first, after, step(2, 4.0, 6.0, compute=2.0)]).ranks[0]
    for rank in (inside, outside):
        assert [(step.begin, step.end, step.compute) for step in rank.steps] == [(0.0, 1.0, 1.0), (4.0, 6.0, 2.0)]
        assert rank.after_evaluation == {2}
        assert rank.training_seconds(6.0, 0.0) == 3.0
        assert rank.training_seconds(2.5, 0.0) == 1.0


def test_steps_after_an_evaluation_measure_only_where_they_are_many(tmp_path: Path) -> None:
    seldom = read_run(make_run(tmp_path / "seldom", steps=20, evaluate_every=5))
    assert [s.step for s in seldom.after(2)[0]] == [3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15, 17, 18, 19, 20]
    always = read_run(make_run(tmp_path / "always", steps=20, evaluate_every=1))
    assert len(always.after(2)[0]) == 18


def test_of_a_long_file_both_ends_are_read(tmp_path: Path) -> None:
    make_run(tmp_path, steps=400, evaluate_every=0)
    rank = read_run(tmp_path, most_bytes=20_000).ranks[0]
    numbers = [step.step for step in rank.steps]
    assert rank.start["rank"] == 0 and numbers[0] == 1 and numbers[-1] == 400 and rank.end is not None
    assert 40 < len(numbers) < 100
    assert len(read_run(tmp_path, most_bytes=10_000_000).ranks[0].steps) == 400


def test_spans_that_overlap_count_once() -> None:
    spans = Spans([(5.0, 8.0), (1.0, 2.0), (6.0, 7.0), (7.5, 8.0), (9.0, 9.0)])
    assert spans.spans == [(1.0, 2.0), (5.0, 8.0)]
    assert [spans.before(time) for time in (0.0, 1.5, 2.0, 4.0, 6.0, 100.0)] == [0.0, 0.5, 1.0, 1.0, 2.0, 4.0]
    assert spans.between(1.5, 6.0) == 1.5
    assert spans.moved(RunClock([Shift(0.0, 1.0, 0.0)])).spans == [(2.0, 3.0), (6.0, 9.0)]


@pytest.mark.parametrize(("recorded", "name"), [("calm", "calm"), (None, "mine.py")])
def test_a_strategy_in_a_file_has_the_name_that_workers_recorded(
    recorded: str | None, name: str, tmp_path: Path
) -> None:
    make_run(tmp_path, steps=3, strategy="strategies/mine.py")
    for path in tmp_path.glob("rank-*.jsonl"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows = [{**row, "strategy": recorded} if row["kind"] == "distribute" else row for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows if recorded or row["kind"] != "distribute"))
    assert [arm.name for arm in planned_in(tmp_path).arms] == [name]


# Runs that were resumed


def session(first: int, last: int, now: float, wall: float) -> list[dict[str, Any]]:
    """Steps of 0.1 s from `now` on, and a log after each."""
    rows: list[dict[str, Any]] = [{"kind": "start", "rank": 0, "size": 1, "now": now - 0.05, "wall": wall - 0.05}]
    for place, number in enumerate(range(first, last + 1)):
        begin = now + 0.1 * place
        rows.append({
            "kind": "step", "optimizer": "model", "step": number, "round": number, "begin": begin,
            "arrive": begin + 0.09, "end": begin + 0.1, "examples": 8,
        })  # fmt: skip
        rows.append({"kind": "log", "step": number, "time": begin + 0.1, "values": {"loss": 1.0 / number}})
    return rows


@pytest.mark.parametrize("later", [100.0, -3000.0], ids=["the same clock", "the machine was started anew"])
def test_what_was_done_again_counts_once(later: float, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    rows = session(1, 36, 5000.0, 1e9) + session(31, 60, 5000.0 + later, 1e9 + 100.0)
    (tmp_path / "rank-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (records,) = read_run(tmp_path).ranks
    assert [step.step for step in records.steps] == list(range(1, 61))
    assert [log.step for log in records.logs] == list(range(1, 61))
    assert records.steps[29].end == pytest.approx(5003.0)
    assert records.steps[30].begin == pytest.approx(5100.0, abs=0.01)
    assert training_seconds(read_run(tmp_path)) == pytest.approx(6.0, abs=0.2)
