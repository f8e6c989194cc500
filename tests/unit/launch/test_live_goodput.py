"""The goodput so far: when it is told, and out of whose records."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from quorate.launch.local import live_goodput
from quorate.launch.local.live_goodput import AFTER, BETWEEN, LONGEST, LiveGoodput
from tests.unit.records.test_live_figures import taken
from tests.unit.report.test_goodput import GONE, every_second, start

EVERYBODY, LOOKS = [0, 1], 6


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
        """Some looks, at once."""
        self.now = now
        sentences = [self.goodput.look(failures, alive) for _ in range(LOOKS)]
        return next((sentence for sentence in sentences if sentence is not None), None)


def test_nothing_is_told_where_nobody_has_failed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, *every_second(4))
    assert [run.look(now, failures=0) for now in (0.0, 100.0, 1e6)] == [None] * 3


def test_it_is_told_some_seconds_behind_a_failure_and_then_ever_more_seldom(tmp_path: Path) -> None:
    run, moments = Run(tmp_path), []
    for number, row in enumerate(every_second(2000)):
        run.writes(0, row)
        if run.look(float(number), failures=int(number >= 7)) is not None:
            moments.append(number)
    first = 7 + AFTER
    assert moments[:4] == [first, first + BETWEEN, first + 3 * BETWEEN, first + 7 * BETWEEN]
    assert all(later - earlier <= LONGEST for earlier, later in itertools.pairwise(moments))
    assert moments[-1] > 2000 - LONGEST


def test_a_further_failure_is_told_soon_and_it_begins_again(tmp_path: Path) -> None:
    run, moments = Run(tmp_path), []
    for number, row in enumerate(every_second(150)):
        run.writes(0, row)
        if run.look(float(number), failures=(number >= 0) + (number >= 100)) is not None:
            moments.append(number)
    assert moments == [5, 15, 35, 75, 105, 115, 135]


def test_many_failures_are_told_together(tmp_path: Path) -> None:
    run, moments = Run(tmp_path), []
    for number, row in enumerate(every_second(60)):
        run.writes(0, row)
        if run.look(float(number), failures=number) is not None:
            moments.append(number)
    assert moments == [1 + AFTER + turn * BETWEEN for turn in range(6)]


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


@pytest.mark.parametrize("is_read_before", [True, False])
def test_where_the_first_worker_has_died_the_next_one_goes_on_telling(tmp_path: Path, is_read_before: bool) -> None:
    """Rounds are in the records of one of them."""
    run = Run(tmp_path, apart=True, fragments=2)
    run.writes(0, *every_second(2))
    run.look(0.0)
    assert run.look(AFTER, alive=EVERYBODY if is_read_before else []) == (
        "goodput so far 100%" if is_read_before else None
    )
    run.writes(0, *every_second(4)[2:], {**taken(2), "told": None}, *every_second(6)[4:])
    run.writes(
        1,
        *every_second(6),
        {**taken(2), "told": None},
        {**GONE, "time": 6.5, "rank": 0},
        *every_second(8)[6:],
        {**taken(4), "told": None},
    )
    assert run.look(AFTER + BETWEEN, alive=[1]) == "goodput so far 50%"


def test_long_records_are_read_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.writes(0, *every_second(10))
    monkeypatch.setattr(live_goodput, "PIECE", (tmp_path / "rank-0.jsonl").stat().st_size // (LOOKS + 2))
    run.look(0.0)
    assert run.look(AFTER) is None
    assert run.look(AFTER) == "goodput so far 100%"


def test_a_worker_on_another_host_goes_by_another_clock(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.writes(0, *every_second(6))
    run.look(0.0)
    assert run.look(AFTER) is not None
    (tmp_path / "rank-1.jsonl").write_text(json.dumps({**start(1, {}, apart=False)[0], "host": "another"}) + "\n")
    run.writes(1, *every_second(10))
    run.writes(0, *every_second(12)[6:])
    assert [run.look(now, failures=2, alive=[1]) for now in (1e3, 1e5)] == [None, None]


def test_rounds_of_a_worker_that_led_between_two_sentences_are_not_lost(tmp_path: Path) -> None:
    run = Run(tmp_path, apart=True, fragments=2)
    run.writes(0, *every_second(2))
    run.writes(1, *every_second(4), {**taken(2), "told": None})
    run.writes(2, *start(2, {}, apart=True), *every_second(8))
    run.look(0.0)
    assert run.look(AFTER, alive=[2]) == "goodput so far 25%"


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
