"""How much was trained per second, by hand and against made runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.records.rows import Step
from quorate.report.figures.throughput import (
    batch_of,
    bytes_per_step,
    examples_of,
    peak_bytes,
    training_seconds,
    window_of,
)
from quorate.report.reading.clocks import Spans
from quorate.report.reading.rank import RankRecords
from quorate.report.reading.run import RunRecords, read_run
from tests.support.made_records import make_run


def steps(ends: list[float], begin: float = 0.0, **more: Any) -> list[Step]:
    """Steps without gaps, of 10 examples each."""
    made = []
    for number, end in enumerate(ends, 1):
        values = {"examples": 10, **more}
        made.append(Step(step=number, optimizer="1", round=number, begin=begin, arrive=begin, end=end, **values))
        begin = end
    return made


def run_of(*ranks: list[Step], evaluations: dict[int, list[tuple[float, float]]] | None = None) -> RunRecords:
    made = (evaluations or {}).get
    return RunRecords(
        Path("x"),
        {},
        None,
        tuple(RankRecords(rank, steps=own, evaluations=Spans(made(rank, []))) for rank, own in enumerate(ranks)),
    )


def test_from_the_end_of_the_warm_up_to_the_first_end() -> None:
    run = run_of(steps([1.0, 2.0, 3.0, 4.0]), steps([2.0, 4.0, 6.0, 8.0]))
    window = window_of(run, warm_up=1)
    assert window is not None
    assert window.seconds == 2.0, "from 2, when rank 1 has warmed up, to 4, when rank 0 ends"
    assert window.examples == 20 + 10 and window.steps == 3.0
    assert window.examples_per_second == 15.0


def test_a_step_that_is_partly_within_counts_in_part() -> None:
    window = window_of(run_of(steps([1.0, 2.0, 3.0]), steps([1.5, 3.0, 4.5])), warm_up=0)
    assert window is not None and window.seconds == 3.0 and window.examples == 30 + 20
    window = window_of(run_of(steps([1.0, 2.0]), steps([1.6, 3.2])), warm_up=0)
    assert window is not None and window.examples == pytest.approx(20 + 10 + 10 * 0.4 / 1.6)


def test_while_anybody_evaluates_nothing_counts() -> None:
    pauses = {0: [(2.0, 7.0)], 1: [(2.0, 6.0)]}
    first = [*steps([1.0, 2.0]), *steps([8.0, 9.0], begin=7.0)]
    second = [*steps([1.0, 2.0]), *steps([8.0, 9.0], begin=6.0)]  # waits for rank 0 from 6 on
    for number, (own, other) in enumerate(zip(first, second, strict=True), 1):
        own.step = other.step = number
    run = run_of(first, second, evaluations=pauses)
    window = window_of(run, warm_up=0)
    assert window is not None
    assert window.seconds == 4.0 and window.examples == 80.0
    assert training_seconds(run) == 4.0


def test_the_ideal_is_what_busy_workers_would_do() -> None:
    fast = steps([1.0, 2.0], compute=0.2, update=0.05, wait=0.75)
    slow = steps([1.0, 2.0], compute=0.25, delay=0.65, data=0.05, update=0.05)
    window = window_of(run_of(fast, slow), warm_up=0)
    assert window is not None
    assert window.no_wait_rate == pytest.approx(10 / 0.25 + 10 / 1.0)
    assert window.no_wait_share == pytest.approx(20 / 50)


def test_what_is_not_counted_is_none() -> None:
    run = run_of(steps([1.0, 2.0], examples=None), steps([1.0, 2.0]))
    window = window_of(run, warm_up=0)
    assert window is not None and window.examples_per_second is None and window.no_wait_share is None
    assert examples_of(run) is None and batch_of(run) == 10
    assert peak_bytes(run) is None


def test_a_run_that_is_all_warm_up_measures_nothing() -> None:
    assert window_of(run_of(steps([1.0, 2.0]), steps([1.0])), warm_up=1) is None
    assert window_of(run_of([], []), warm_up=0) is None
    assert training_seconds(run_of([], [])) is None and bytes_per_step(run_of([]), 0) is None


def test_bytes_of_all_optimizers_add_up() -> None:
    run = run_of(steps([1.0, 2.0, 3.0], bytes_out=100))
    run.ranks[0].others = steps([1.0, 2.0, 3.0], bytes_out=7)
    assert bytes_per_step(run, warm_up=1) == 107.0


def test_a_made_run(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, steps=40, slow_rank=None, jitter=0.0, communication=0.010))
    window = window_of(run, warm_up=5)
    assert window is not None
    step = 0.0005 + 0.020 + 0.010 + 0.0012 - 0.0002 + 0.0002
    assert window.examples_per_second == pytest.approx(4 * 8 / step, rel=0.02)
    assert window.steps == pytest.approx(4 * 35, abs=0.01)
    assert window.no_wait_share == pytest.approx((0.0005 + 0.020 + 0.001) / step, rel=0.02)
    assert examples_of(run) == 4 * 40 * 8 and bytes_per_step(run, 5) == 40_000
    assert peak_bytes(run) == 303_000_000


def test_no_share_of_the_ideal_is_above_it(tmp_path: Path) -> None:
    window = window_of(read_run(make_run(tmp_path, waits=False, steps=100)), warm_up=5)
    assert window is not None and window.no_wait_share is not None
    assert 0.85 < window.no_wait_share < 1.0


def test_peaks_need_the_end_of_only_one_rank(tmp_path: Path) -> None:
    make_run(tmp_path, steps=5)
    path = tmp_path / "rank-3.jsonl"
    kept = [line for line in path.read_text().splitlines() if json.loads(line)["kind"] != "end"]
    path.write_text("\n".join(kept) + "\n")
    assert peak_bytes(read_run(tmp_path)) == 302_000_000
