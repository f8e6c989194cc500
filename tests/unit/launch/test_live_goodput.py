"""The goodput so far: when it is told, and out of whose records."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from quorate.launch.local.live_goodput import AFTER, BETWEEN, LONGEST, LiveGoodput
from tests.unit.core.test_live_figures import taken
from tests.unit.report.test_goodput import GONE, every_second, start

EVERYBODY = [0, 1]


class Run:
    """One that is told by hand what happens; its clock stands still meanwhile."""

    def __init__(self, folder: Path, *, apart: bool = False, **settings: Any) -> None:
        self.now, self.folder = 0.0, folder
        self.goodput = LiveGoodput(folder, now=lambda: self.now)
        for rank in EVERYBODY:
            self.writes(rank, *start(rank, settings, apart=apart))

    def writes(self, rank: int, *rows: dict[str, Any]) -> None:
        with open(self.folder / f"rank-{rank}.jsonl", "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def look(self, now: float, failures: int = 1, alive: list[int] = EVERYBODY) -> str | None:
        self.now = now
        return self.goodput.look(failures, alive)


def test_nothing_is_told_where_nobody_has_failed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, *every_second(4))
    assert [run.look(now, failures=0) for now in (0.0, 100.0, 1e6)] == [None] * 3


def test_it_is_told_some_seconds_behind_a_failure_and_then_ever_more_seldom(tmp_path: Path) -> None:
    run, told = Run(tmp_path), []
    for number, row in enumerate(every_second(2000)):
        run.writes(0, row)
        if run.look(float(number), failures=int(number >= 7)) is not None:
            told.append(number)
    first = 7 + AFTER
    assert told[:4] == [first, first + BETWEEN, first + 3 * BETWEEN, first + 7 * BETWEEN]
    assert all(later - one <= LONGEST for one, later in itertools.pairwise(told))
    assert told[-1] > 2000 - LONGEST


def test_many_failures_are_told_together(tmp_path: Path) -> None:
    run, told = Run(tmp_path), []
    for number, row in enumerate(every_second(60)):
        run.writes(0, row)
        if run.look(float(number), failures=number) is not None:
            told.append(number)
    assert told == [1 + AFTER + turn * BETWEEN for turn in range(6)]


def test_it_is_the_share_of_steps_that_those_at_the_start_could_have_made(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, *every_second(6), GONE, *every_second(10)[6:])
    assert run.look(0.0) is None
    assert run.look(AFTER) == "goodput so far 80%"


def test_of_learners_it_is_what_rounds_have_taken_in(tmp_path: Path) -> None:
    run = Run(tmp_path, apart=True, fragments=2)
    merges = [{**row, "told": None} for row in (taken(1), taken(4))]
    run.writes(0, *every_second(8), *merges, GONE)
    assert run.look(0.0) is None
    assert run.look(AFTER) == "goodput so far 50%"


def test_where_the_first_worker_has_died_the_next_one_goes_on_telling(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, *every_second(6))
    run.look(0.0)
    assert run.look(AFTER) == "goodput so far 100%"
    run.writes(1, *every_second(6), {**GONE, "time": 6.5, "rank": 0}, *every_second(10)[6:])
    assert run.look(AFTER + BETWEEN, alive=[1]) == "goodput so far 80%"


def test_a_worker_on_another_host_goes_by_another_clock(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, *every_second(6))
    run.look(0.0)
    assert run.look(AFTER) is not None
    (tmp_path / "rank-1.jsonl").write_text(json.dumps({**start(1, {}, apart=False)[0], "host": "another"}) + "\n")
    run.writes(1, *every_second(10))
    assert [run.look(now, alive=[1]) for now in (1e3, 1e5)] == [None, None]


def test_of_a_run_that_is_gone_on_with_only_what_is_new_counts(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, *every_second(6), GONE, *every_second(10)[6:], *start(0, {}, apart=False), *every_second(4))
    run.look(0.0)
    assert run.look(AFTER) == "goodput so far 100%"


@pytest.mark.parametrize("alive", [EVERYBODY, []])
def test_nothing_is_told_where_there_are_no_new_steps(tmp_path: Path, alive: list[int]) -> None:
    run = Run(tmp_path)
    run.look(0.0)
    assert run.look(AFTER, alive=alive) is None
    run.writes(0, *every_second(4))
    assert run.look(AFTER + BETWEEN, alive=[]) is None
    assert run.look(AFTER + 4 * BETWEEN) == "goodput so far 100%"
    assert run.look(AFTER + 1000.0) is None
