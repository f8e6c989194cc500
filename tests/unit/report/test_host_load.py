"""Other work on the hosts of a run: when it is said to have disturbed it, and where that is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.records.host_rows import Load
from quorate.records.records import Recorder, records_of
from quorate.report.reading.run import read_run
from quorate.report.schema import HostLoad, Outcome
from quorate.report.summary import load_of, markdown, other_work_in_words, summarize
from tests.support.made_records import make_comparison
from tests.support.raw_rows import RawRow


def load(**values: Any) -> Load:
    usual = {"time": 100.0, "seconds": 10.0, "cpu_seconds": 5.0, "cores": 4, "busy_seconds": 20.0}
    return Load(**{**usual, **values})


def load_in(folder: Path, *loads: Load | None, hosts: tuple[str, ...] = ("a",)) -> HostLoad | None:
    """The load of a run whose ranks take turns on `hosts`, and have recorded these rows."""
    folder.mkdir(exist_ok=True)
    for rank, row in enumerate(loads):
        recorder = Recorder(records_of(folder, rank))
        recorder.hold(RawRow("start", rank=rank, size=len(loads), host=hosts[rank % len(hosts)], now=0.0, wall=0.0))
        if row is not None:
            recorder.hold(row)
        recorder.close()
    return load_of(read_run(folder))


def test_the_workers_own_time_is_no_other_work(tmp_path: Path) -> None:
    crowded = load_in(tmp_path / "a", *[load(cpu_seconds=10.0, busy_seconds=40.5)] * 4)
    assert crowded is not None and (crowded.used, crowded.other) == (4.0, pytest.approx(0.05))
    assert not crowded.is_busy, "every core was busy, with the run"
    disturbed = load_in(tmp_path / "b", *[load(cpu_seconds=5.0, busy_seconds=38.0)] * 4)
    assert disturbed is not None and disturbed.is_busy and disturbed.other == pytest.approx(1.8)


def test_other_work_on_cores_that_nobody_needs_does_not_disturb(tmp_path: Path) -> None:
    two, four = [load(cores=64, busy_seconds=300.0)] * 2, [load(cores=64, busy_seconds=620.0)] * 4
    roomy, full = load_in(tmp_path / "a", *two), load_in(tmp_path / "b", *four)
    assert roomy is not None and roomy.other == pytest.approx(29.0) and not roomy.is_busy
    assert full is not None and full.other == pytest.approx(60.0) and not full.is_busy
    crowded = load_in(tmp_path / "c", *[load(cores=64, busy_seconds=630.0)] * 4)
    assert crowded is not None and crowded.is_busy, "61 cores of others leave three for four workers"


def test_where_only_the_load_average_is_known_it_counts_after_a_minute(tmp_path: Path) -> None:
    long = load(seconds=100.0, cpu_seconds=50.0, busy_seconds=None, load_average=5.5)
    measured = load_in(tmp_path / "a", *[long] * 2)
    assert measured is not None and measured.other == pytest.approx(3.5) and measured.is_busy
    short = load_in(tmp_path / "b", *[load(busy_seconds=None, load_average=5.5)] * 2)
    assert short is not None and short.other is None and not short.is_busy
    nothing = load_in(tmp_path / "c", *[load(seconds=100.0, busy_seconds=None)] * 2)
    assert nothing is not None and nothing.other is None and other_work_in_words([outcome(nothing)]) is None


def test_without_the_time_of_each_worker_nothing_is_said(tmp_path: Path) -> None:
    assert load_in(tmp_path / "a", load(busy_seconds=40.0), None) is None
    assert load_in(tmp_path / "b", load(seconds=0.0)) is None
    assert load_in(tmp_path / "none") is None


def test_of_several_hosts_the_worst_counts(tmp_path: Path) -> None:
    busy, quiet = load(busy_seconds=39.0), load(cpu_seconds=1.0, busy_seconds=2.0)
    worst = load_in(tmp_path / "a", quiet, busy, quiet, busy, hosts=("a", "b"))
    assert worst is not None and worst.other == pytest.approx(2.9) and worst.is_busy
    known = load_in(tmp_path / "b", quiet, busy, quiet, None, hosts=("a", "b"))
    assert known is not None and known.other == 0.0, "of the other host a worker is not known"


def outcome(host_load: HostLoad | None, **values: Any) -> Outcome:
    return Outcome(**{"seed": 0, "folder": "a", "status": 0, "seconds": 1.0, "why": None, "load": host_load, **values})


def test_the_sentence_counts_the_runs_that_have_ended() -> None:
    quiet = HostLoad(cores=2, used=1.0, other=0.1, load_average=None, pressure=None, is_busy=False)
    busy, busier = (quiet.model_copy(update={"other": other, "is_busy": True}) for other in (1.2, 1.64))
    assert other_work_in_words([outcome(busy)]) == "the machine was busy with other work (1.2 of 2 cores)"
    outcomes = [outcome(quiet), outcome(busy), outcome(None), outcome(None, status=None)]
    assert other_work_in_words(outcomes) == "the machine was busy with other work (1.2 of 2 cores) in 1 of 3 runs"
    assert other_work_in_words([*outcomes, outcome(busier)]) == (
        "the machine was busy with other work (at most 1.6 of 2 cores) in 2 of 4 runs"
    )
    assert other_work_in_words([outcome(quiet), outcome(None)]) is None


def test_it_is_in_the_summary_and_in_the_markdown(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path, seeds=(0, 1), fails=False, steps=20)
    before = summarize(folder)
    assert before.other_work is None and before.arms[0].runs[0].load is None
    for rank in range(4):
        row = load(busy_seconds=39.0, load_average=9.0, pressure=0.5).as_json()
        with open(records_of(folder / "quorum" / "seed-1", rank), "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    summary = summarize(folder)
    said = "the machine was busy with other work (1.9 of 4 cores) in 1 of 6 runs"
    assert summary.other_work == said
    assert summary.arms[2].runs[1].load == HostLoad(
        cores=4, used=2.0, other=1.9, load_average=9.0, pressure=0.5, is_busy=True
    )
    assert f"\n\n**T{said[1:]}.**\n\n" in markdown(summary)
    rest = {"other_work": None, "arms": before.arms}
    assert summary.model_copy(update=rest) == before, "nothing else has changed"
