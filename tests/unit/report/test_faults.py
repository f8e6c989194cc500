"""Workers that died while the others went on, as records tell of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.records.rows import Gone, Step
from quorate.report.closing import closing_line
from quorate.report.page import page
from quorate.report.reading.clocks import RunClock, Shift
from quorate.report.reading.rank import moved
from quorate.report.reading.run import each_once, read_run
from quorate.report.reading.sound import row_of
from quorate.report.summary import summarize
from quorate.report.topics.faults import standstill

ROW = {
    "kind": "gone",
    "time": 3.0,
    "rank": 1,
    "host": "h",
    "reason": "was killed",
    "round": 7,
    "generation": 1,
    "left": 2,
}
DEATH = Gone(time=3.0, rank=1, host="h", reason="was killed", round=7, generation=1, left=2)


def step(number: int, end: float) -> dict[str, Any]:
    begin = end - 0.1
    about = {"optimizer": "1", "round": number, "begin": begin, "arrive": begin + 0.05, "end": end}
    return {"kind": "step", "step": number, **about}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rank 1 of three dies after 2 s, and the others stand still until 3.5 s."""
    start = {"kind": "start", "size": 3, "host": "h", "pid": 1, "clock": "monotonic", "now": 0.0, "wall": 1e9}
    for rank, ends in ((0, [1.0, 2.0, 3.5, 4.0]), (1, [1.0, 2.0]), (2, [1.0, 2.0, 3.25, 4.0])):
        rows = [{**start, "rank": rank, "device": "cpu", "seed": 0}]
        rows += [step(number, end) for number, end in enumerate(ends, start=1)]
        rows += [ROW] if rank == 0 else []
        (tmp_path / f"rank-{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.json").write_text(json.dumps({"command": ["quorate"], "workers": 3}))
    (tmp_path / "outcome.json").write_text(json.dumps({"status": 0, "seconds": 5.0, "why": None}))
    return tmp_path


def test_they_are_read_and_said(folder: Path) -> None:
    assert read_run(folder).deaths == [DEATH]
    assert "rank 1 died after update 7, and 2 continued" in (closing_line(folder) or "")
    (arm,) = summarize(folder).arms
    (fault,) = arm.faults
    assert (fault.rank, fault.why, fault.round, fault.left, fault.standstill) == (1, "was killed", 7, 2, 1.5)


def test_the_page_has_a_section_on_them(folder: Path) -> None:
    shown = page(summarize(folder))
    assert "Workers that died" in shown
    assert "was killed" in shown


def test_a_row_that_lacks_something_is_none() -> None:
    assert row_of(Gone, ROW) == DEATH
    for key in ("time", "rank", "host", "reason", "round", "left"):
        assert row_of(Gone, {name: value for name, value in ROW.items() if name != key}) is None


def test_each_counts_once_and_the_first_word_counts() -> None:
    late = Gone(time=4.0, rank=1, host="h", reason="was killed", round=9, generation=1, left=2)
    other = Gone(time=3.5, rank=0, host="h", reason="was killed", round=8, generation=1, left=1)
    assert each_once([[late, other], [DEATH]]) == [DEATH, other]
    assert moved([DEATH], RunClock([Shift(0.0, 1.0, 0.0)]))[0].time == 4.0


def test_a_halt_is_that_of_those_who_went_on() -> None:
    steps = {
        rank: [Step(1, "1", 1, 0.0, 0.0, end) for end in ends] for rank, ends in ((0, [2.0, 3.0]), (1, [1.0, 9.0]))
    }
    assert standstill(DEATH, steps) == 1.0
    assert standstill(DEATH, {1: steps[1]}) is None
