"""The timeline file: valid by the Trace Event Format, and true to the records."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quorate.core.errors import ConfigurationError
from quorate.records.records import Recorder, records_of, rows
from quorate.records.rows import Step
from quorate.report import trace
from quorate.report.trace import activities, write_trace
from tests.support.made_records import make_run
from tests.support.raw_rows import RawRow

Event = dict[str, Any]


def written(folder: Path) -> list[Event]:
    """The events of the run's timeline, after checking the file."""
    path = folder / "trace.json.gz"
    result = write_trace(folder, path)
    document = json.loads(gzip.decompress(path.read_bytes()), parse_constant=pytest.fail)
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = document["traceEvents"]
    assert result.events == len(events)
    check(events)
    return events


def check(events: list[Event]) -> None:
    """Check the demands of the Trace Event Format on complete, counter, instant and metadata events, and our
    promises."""
    slices: dict[tuple[int, int], list[Event]] = defaultdict(list)
    counters: dict[tuple[int, str], list[int]] = defaultdict(list)
    for event in events:
        assert type(event["pid"]) is int and type(event["tid"]) is int
        assert type(event["name"]) is str and event["name"]
        assert type(event["args"]) is dict
        match event["ph"]:
            case "M":
                wanted = {"process_name": str, "thread_name": str, "process_sort_index": int}[event["name"]]
                (value,) = event["args"].values()
                assert type(value) is wanted
                assert set(event["args"]) == {"sort_index" if wanted is int else "name"}
            case "X":
                assert type(event["ts"]) is int and type(event["dur"]) is int
                assert event["ts"] >= 0 and event["dur"] >= 0
                slices[event["pid"], event["tid"]].append(event)
            case "C":
                assert event["args"] and all(math.isfinite(value) for value in event["args"].values())
                counters[event["pid"], event["name"]].append(event["ts"])
            case "i":
                assert event["s"] in ("g", "p", "t") and event["ts"] >= 0
            case other:
                pytest.fail(f"an event of phase {other}")
    for track in slices.values():
        for early, after in pairwise(track):
            assert early["ts"] + early["dur"] <= after["ts"], (early, after)
    assert all(times == sorted(times) for times in counters.values())
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(slices) <= named


def slices_of(events: list[Event], rank: int) -> list[tuple[str, int, int]]:
    """(name, begin, end) of what the rank's time went into, in microseconds."""
    names = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    return [
        (event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["ph"] == "X" and event["pid"] == rank and event["tid"] == names["activity"]
    ]


def make_rank(folder: Path, rank: int, *rows: Step | dict[str, Any], **start: Any) -> None:
    """Records of one rank, which begin with a start row unless `start` has `written=False`."""
    recorder = Recorder(records_of(folder, rank))
    if start.pop("written", True):
        recorder.write(RawRow("start", **{"rank": rank, "host": "tower", "now": 0.0, "wall": 1e9, **start}))
    for row in rows:
        if isinstance(row, Step):
            recorder.step(row)
        else:
            recorder.write(RawRow(row.pop("kind"), **row))
    recorder.close()


def a_step(begin: float, arrive: float, end: float, *, step: int = 1, **more: Any) -> Step:
    return Step(**{"step": step, "optimizer": "1", "round": step, "begin": begin, "arrive": arrive, "end": end, **more})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"waits": False},
        {"one_of": 0.02},
        {"clocks": (("tower", 1000.0), ("castle", 7.0))},
        {"fails_at": 20},
        {"is_virtual": True, "evaluate_every": 0},
        {"ranks": 1, "slow_rank": None},
    ],
    ids=str,
)
def test_the_file_is_valid_and_complete(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = make_run(tmp_path / "run", **changes)
    events = written(folder)
    steps = [event for event in events if event["ph"] == "X" and event["name"].startswith("step ")]
    assert len(steps) == sum(row["kind"] == "step" for path in folder.glob("*.jsonl") for row in rows(path))
    ranks = {event["pid"] for event in events}
    assert ranks == set(range(changes.get("ranks", 4)))
    for rank in ranks:
        own = [event for event in steps if event["pid"] == rank]
        spent = slices_of(events, rank)
        assert sum(end - begin for _, begin, end in spent) == sum(event["dur"] for event in own)
    assert min(event["ts"] for event in events if "ts" in event) == 0


def test_a_step_is_laid_out(tmp_path: Path) -> None:
    spent = {"data": 1.0, "delay": 2.0, "compute": 3.0, "encode": 0.5, "wait": 4.0, "decode": 0.25, "update": 0.75}
    make_rank(tmp_path, 0, a_step(10, 16, 22, **spent, loss=0.5, bytes_out=7, bytes_in=8, examples=3))
    make_rank(tmp_path, 1, a_step(10, 17, 22, compute=7.0, wait=5.0))
    events = written(tmp_path)
    seconds = [(name, begin / 1e6, end / 1e6) for name, begin, end in slices_of(events, 0)]
    assert seconds == [
        ("data", 0, 1),
        ("delay", 1, 3),
        ("compute", 3, 6),
        ("encode", 6, 6.5),
        ("waiting", 6.5, 7.5),
        ("communication", 7.5, 10.5),
        ("decode", 10.5, 10.75),
        ("update", 10.75, 11.5),
        ("other", 11.5, 12),
    ]
    assert [name for name, _, _ in slices_of(events, 1)] == ["compute", "communication"]
    (waiting,) = [event for event in events if event["name"] == "waiting"]
    assert waiting["args"] == {"step": 1, "round": 1, "waited for": "rank 1"}
    (step,) = [event for event in events if event["name"] == "step 1" and event["pid"] == 0]
    assert step["args"] == {
        "step": 1, "round": 1, "loss": 0.5, "examples": 3, "tokens": None, "bytes out": 7, "bytes in": 8,
        "contributors": 1, "staleness": 0,
    }  # fmt: skip
    counted = [(event["name"], event["ts"], event["args"]) for event in events if event["ph"] == "C"]
    assert counted[:2] == [("loss", 12_000_000, {"loss": 0.5}), ("bytes", 12_000_000, {"out": 7, "in": 8})]


@pytest.mark.parametrize(
    ("spent", "waiting", "spans"),
    [
        ({}, 0, [("other", 0, 10), ("other", 10, 20)]),
        ({"data": 30}, 0, [("data", 0, 10), ("other", 10, 20)]),
        ({"compute": 30, "delay": 5, "data": 4}, 0, [("data", 0, 4), ("compute", 4, 10), ("other", 10, 20)]),
        ({"compute": 4, "delay": 30}, 0, [("delay", 0, 6), ("compute", 6, 10), ("other", 10, 20)]),
        ({"compute": 10, "wait": 10}, 30, [("compute", 0, 10), ("waiting", 10, 20)]),
        ({"compute": 10, "wait": 10}, -5, [("compute", 0, 10), ("communication", 10, 20)]),
        ({"data": 10, "wait": 10}, 3, [("data", 0, 10), ("waiting", 10, 13), ("communication", 13, 20)]),
        ({"data": 10, "decode": 4, "update": 30}, 0, [("data", 0, 10), ("decode", 10, 14), ("update", 14, 20)]),
        ({"data": -1, "compute": 10, "wait": 10}, 0, [("compute", 0, 10), ("communication", 10, 20)]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_cut_off(spent: dict[str, int], waiting: int, spans: list[tuple[str, int, int]]) -> None:
    step = a_step(0.0, 0.0, 0.0, **{name: length / 1e6 for name, length in spent.items()})
    assert activities(0, 10, 20, step, waiting) == spans


def test_ranks_wait_for_the_last_of_their_own_round(tmp_path: Path) -> None:
    make_rank(tmp_path, 0, a_step(0, 1, 5, wait=4, round=1), a_step(5, 6, 9, step=2, wait=3, round=3))
    make_rank(tmp_path, 1, a_step(0, 3, 5, wait=2, round=1), a_step(5, 8, 9, step=2, wait=1, round=2))
    make_rank(tmp_path, 2, a_step(0, 2, 5, wait=3, round=1))
    events = written(tmp_path)
    waited = [
        (event["pid"], event["dur"], event["args"]["waited for"]) for event in events if event["name"] == "waiting"
    ]
    assert waited == [(0, 2_000_000, "rank 1"), (2, 1_000_000, "rank 1")]


def test_rounds_may_have_several_steps(tmp_path: Path) -> None:
    for rank, late in ((0, 0.0), (1, 1.0)):
        first = a_step(0, 1, 4, wait=3, round=0)
        second = a_step(4, 5 + late, 8, step=2, wait=3 - late, round=0)
        make_rank(tmp_path, rank, first, second)
    waited = [event for event in written(tmp_path) if event["name"] == "waiting"]
    assert [(event["pid"], event["args"]["step"], event["dur"]) for event in waited] == [(0, 2, 1_000_000)]


def test_hosts_are_put_on_one_clock(tmp_path: Path) -> None:
    make_rank(tmp_path, 0, a_step(10, 11, 14, wait=3), now=5.0, wall=1005.0)
    make_rank(tmp_path, 1, a_step(210, 213, 214, wait=1), host="castle", now=205.0, wall=1005.0)
    make_rank(tmp_path, 2, a_step(210, 212, 214, wait=2), host="castle", now=205.0, wall=1005.5)
    events = written(tmp_path)
    begins = [event["ts"] for event in events if event["name"] == "step 1"]
    assert begins == [0, 0, 0]  # one offset for a host: its ranks share a clock
    waits = {event["pid"]: event["dur"] for event in events if event["name"] == "waiting"}
    assert waits == {0: 2_000_000, 2: 1_000_000}
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 (tower)", "rank 1 (castle)", "rank 2 (castle)"]


def test_evaluations_and_logs_are_shown(tmp_path: Path) -> None:
    evaluation = {"kind": "evaluate", "step": 0, "begin": 1.0, "end": 3.0}
    log = {"kind": "log", "step": 1, "time": 6.0, "values": {"top1": 0.5, "bad": math.nan, "list": [math.inf]}}
    make_rank(tmp_path, 0, evaluation, a_step(3, 4, 5), log)
    events = written(tmp_path)
    (shown,) = [event for event in events if event["name"] == "evaluate"]
    assert (shown["ts"], shown["dur"], shown["args"]) == (0, 2_000_000, {"step": 0})
    (logged,) = [event for event in events if event["ph"] == "i"]
    assert (logged["ts"], logged["args"]) == (5_000_000, {"top1": 0.5, "bad": "nan", "list": ["inf"]})


def test_optimizers_have_tracks_of_their_own(tmp_path: Path) -> None:
    make_rank(tmp_path, 0, a_step(0, 1, 4), a_step(2, 3, 6, optimizer="critic"), a_step(4, 5, 8, step=2))
    events = written(tmp_path)
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks == {"steps", "activity", "steps of optimizer critic", "activity of optimizer critic"}
    assert {event["name"] for event in events if event["ph"] == "C"} == {"bytes", "bytes (critic)"}


def test_a_loss_that_is_no_number_is_told_and_not_counted(tmp_path: Path) -> None:
    make_rank(tmp_path, 0, a_step(0, 1, 2, loss=math.nan), a_step(2, 3, 4, step=2))
    events = written(tmp_path)
    assert [event["args"].get("loss") for event in events if event["name"].startswith("step ")] == ["nan", None]
    assert "loss" not in {event["name"] for event in events if event["ph"] == "C"}


def test_damaged_rows_are_skipped(tmp_path: Path) -> None:
    make_rank(tmp_path, 0, {"kind": "evaluate"}, {"kind": "log", "values": 3}, a_step(0, 1, 2), written=False)
    with open(records_of(tmp_path, 0), "a", encoding="utf-8") as file:
        file.write('{"kind":"step","step":2}\n{"kind":"st')
    events = written(tmp_path)
    assert [event["name"] for event in events if event["ph"] == "X"] == ["step 1", "other", "other"]
    assert events[0]["args"]["name"] == "rank 0 (unknown host)"


def test_a_run_may_go_on_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rank(tmp_path, 0, a_step(0, 1, 2))
    surveyed = trace.survey

    def survey_then_step(*arguments: Any) -> Any:
        result = surveyed(*arguments)
        make_rank(tmp_path, 0, a_step(2, 3, 5, step=2, compute=1, wait=2), written=False)
        return result

    monkeypatch.setattr(trace, "survey", survey_then_step)
    assert [name for name, *_ in slices_of(written(tmp_path), 0)] == ["other", "other", "compute", "communication"]


def test_under_a_quorum_the_last_gradient_of_the_round_was_waited_for(tmp_path: Path) -> None:
    taken = {"0": [[1, 1]], "2": [[0, 2]]}
    record = {"kind": "round", "number": 1, "time": 0.2, "weight": 1.0, "live": 3, "contributors": {"2": [[0, 1]]}}
    two = {**record, "number": 2, "time": 5.5, "contributors": taken}
    make_rank(tmp_path, 0, record, two, a_step(0, 2, 6, round=2, compute=2, wait=4))
    make_rank(tmp_path, 1, a_step(0, 5, 6, round=2, compute=5, wait=1))
    make_rank(tmp_path, 2, a_step(0, 1, 1, round=1), a_step(1, 1, 1, round=1, step=2), a_step(1, 3, 7, round=2, step=3))
    events = written(tmp_path)
    assert slices_of(events, 0) == [
        ("compute", 0, 2_000_000), ("waiting", 2_000_000, 3_000_000), ("communication", 3_000_000, 6_000_000),
    ]  # fmt: skip
    assert "waiting" not in {name for name, *_ in slices_of(events, 1)}, "it came when the round was on its way"
    waited = [event for event in events if event["name"] == "waiting"]
    assert [event["args"]["waited for"] for event in waited] == ["rank 2"]
    rounds = [event for event in events if event["name"] == "round"]
    assert [(event["ph"], event["s"], event["ts"]) for event in rounds] == [("i", "g", 200_000), ("i", "g", 5_500_000)]
    assert rounds[1]["args"] == {
        "round": 2, "contributors": 2, "rank 0": "1 of staleness 1", "rank 2": "2 fresh",
    }  # fmt: skip


def test_equal_records_give_equal_bytes_compressed_or_not(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=5)
    packed, again, plain = tmp_path / "a.json.gz", tmp_path / "b.json.gz", tmp_path / "c.json"
    for path in (packed, again, plain):
        write_trace(folder, path)
    assert packed.read_bytes() == again.read_bytes()
    assert packed.read_bytes()[4:8] == bytes(4), "the time of writing is not a part of it"
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_nothing_is_left_of_a_file_that_could_not_be_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run", steps=3)
    target = tmp_path / "trace.json.gz"
    target.write_text("earlier")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trace, "activities", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_trace(folder, target)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["trace.json.gz"]
    assert target.read_text() == "earlier"


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    make_rank(tmp_path, 0)
    with pytest.raises(ConfigurationError, match="no worker has recorded a step"):
        write_trace(tmp_path, tmp_path / "trace.json.gz")
    assert not (tmp_path / "trace.json.gz").exists()
