"""The clocks of several hosts as one: what workers measured, how far it reaches, and what is done without it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quorate.records.rows import ClockOffset
from quorate.report.reading.clocks import DRIFT, RunClock, run_clocks
from quorate.report.reading.run import read_run
from quorate.report.trace import write_trace
from tests.support.made_records import make_run

DAY = 1_790_000_000.0


def start(host: str, now: float, wall: float = DAY) -> dict[str, Any]:
    return {"host": host, "now": now, "wall": wall}


def row(time: float, machine: str, reference: int, offset: float, uncertainty: float = 1e-4) -> ClockOffset:
    return ClockOffset(time=time, machine=machine, reference=reference, offset=offset, uncertainty=uncertainty)


def same(time: float, machine: str, reference: int) -> ClockOffset:
    return row(time, machine, reference, 0.0, 0.0)


def clocks(**offsets: Sequence[ClockOffset]) -> dict[int, RunClock]:
    by_rank = {int(name[1:]): rows for name, rows in offsets.items()}
    return run_clocks({rank: start(rows[0].machine, 0.0) for rank, rows in by_rank.items()}, by_rank)


def test_what_was_measured_counts_and_not_the_time_of_day() -> None:
    by_rank = run_clocks(
        {0: start("a", 100.0), 1: start("b", 50.0, DAY + 3.0)},
        {0: [same(100.0, "A", 0)], 1: [row(50.0, "B", 0, 50.002)]},
    )
    assert by_rank[0].at(7.0) == 7.0 and by_rank[0].uncertainty(7.0) == 0.0
    assert by_rank[1].at(50.0) == pytest.approx(100.002)
    assert by_rank[1].uncertainty(50.0) == 1e-4
    assert by_rank[1].uncertainty(60.0) == pytest.approx(1e-4 + 10 * DRIFT)


def test_between_two_measurements_a_clock_goes_evenly() -> None:
    by_rank = clocks(r0=[same(0.0, "A", 0)], r1=[row(10.0, "B", 0, 1.0), row(20.0, "B", 0, 1.001, 2e-4)])
    assert by_rank[1].at(15.0) == pytest.approx(16.0005) and by_rank[1].uncertainty(15.0) == 2e-4


def test_ranks_of_one_machine_have_one_clock() -> None:
    by_rank = clocks(r0=[same(0.0, "A", 0)], r1=[row(5.0, "B", 0, 1.0)], r2=[row(5.5, "B", 0, 1.3, 0.5)])
    assert by_rank[1] is by_rank[2]
    assert by_rank[2].at(5.5) == pytest.approx(6.5), "what is known better counts"


def test_a_rank_that_measured_nothing_goes_by_its_host() -> None:
    starts = {0: start("a", 100.0), 1: start("b", 50.0, DAY + 3.0), 2: start("b", 51.0, DAY + 4.0)}
    by_rank = run_clocks(starts, {0: [same(100.0, "A", 0)], 1: [row(50.0, "B", 0, 50.0)], 2: []})
    assert by_rank[2].at(51.0) == pytest.approx(101.0) and by_rank[2].uncertainty(50.0) == 1e-4


def test_nobody_knows_how_right_the_time_of_day_is() -> None:
    by_rank = run_clocks({0: start("a", 100.0), 1: start("b", 50.0)}, {})
    assert by_rank[1].at(50.0) == 100.0 and by_rank[1].uncertainty(50.0) == math.inf
    assert by_rank[0].uncertainty(50.0) == 0.0


def test_where_the_reference_was_lost_both_uncertainties_count() -> None:
    """Rank 0 and its machine go; the others measure against rank 1 then."""
    by_rank = clocks(
        r0=[same(0.0, "A", 0)],
        r1=[row(10.0, "B", 0, 5.0, 1e-3), same(20.0, "B", 1)],
        r2=[row(30.0, "C", 1, -2.0, 1e-4)],
    )
    assert by_rank[2].at(30.0) == pytest.approx(33.0)
    assert by_rank[2].uncertainty(30.0) == pytest.approx(1e-4 + 1e-3 + 18 * DRIFT)
    assert by_rank[1].at(20.0) == pytest.approx(25.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_truth_is_within_the_uncertainty(seed: int) -> None:
    """A clock that drifts by 100 ppm, and measurements that are all wrong within what they say."""
    draw = random.Random(seed)
    drift, beyond = draw.uniform(-1e-4, 1e-4), draw.uniform(-1e6, 1e6)
    rows = []
    for number in range(40):
        true, wide = 5.0 * number + draw.random(), draw.choice([1e-5, 1e-3, 0.3])
        own = true * (1 + drift) + beyond
        rows.append(row(own, "B", 0, true - own + draw.uniform(-wide, wide), wide))
    clock = clocks(r0=[same(0.0, "A", 0)], r1=rows)[1]
    before = -math.inf
    for _ in range(500):
        true = draw.uniform(-10.0, 220.0)
        own = true * (1 + drift) + beyond
        assert abs(clock.at(own) - true) <= clock.uncertainty(own) + 1e-9
    for number in range(2000):
        now = clock.at(beyond + number / 10)
        assert now > before
        before = now


@pytest.mark.parametrize("as_trace", [False, True])
def test_reports_and_traces_go_by_what_was_measured(tmp_path: Path, as_trace: bool) -> None:
    """The time of day of the second host is 3 s wrong."""
    make_run(tmp_path, steps=12, clocks=(("tower", 1000.0), ("attic", 77.0)), ranks=2, slow_rank=1)
    for rank, offset, uncertainty in ((0, 0.0, 0.0), (1, 923.0, 1e-4)):
        path = tmp_path / f"rank-{rank}.jsonl"
        first, *others = path.read_text().splitlines()
        begun = json.loads(first)
        begun["wall"] += 3.0 * rank
        measured = ClockOffset(
            time=begun["now"], machine="AB"[rank], reference=0, offset=offset, uncertainty=uncertainty
        )
        path.write_text("\n".join([json.dumps(begun), json.dumps(measured.as_json()), *others]) + "\n")
    if as_trace:
        written = write_trace(tmp_path, tmp_path / "trace.json")
        events = json.loads(written.path.read_text())["traceEvents"]
        ends = [[e["ts"] + e["dur"] for e in events if e["name"].startswith("step ") and e["pid"] == r] for r in (0, 1)]
        assert ends[0] == pytest.approx(ends[1], abs=2)
    else:
        run = read_run(tmp_path)
        ends = [[step.end for step in rank.steps] for rank in run.ranks]
        assert ends[0] == pytest.approx(ends[1], abs=2e-6)
        assert 1e-4 <= run.clock_uncertainty < 1e-3


def test_damaged_rows_are_as_none(tmp_path: Path) -> None:
    make_run(tmp_path, steps=3, clocks=(("tower", 1000.0), ("attic", 77.0)), ranks=2)
    expected = [step.end for step in read_run(tmp_path).ranks[1].steps]
    with open(tmp_path / "rank-1.jsonl", "a") as file:
        file.write('{"kind":"clock","time":1.0,"machine":"B","reference":0,"offset":"x","uncertainty":0}\n')
        file.write('{"kind":"clock","time":1.0,"machine":"B","reference":7,"offset":1.0,"uncertainty":0}\n')
    assert [step.end for step in read_run(tmp_path).ranks[1].steps] == expected
