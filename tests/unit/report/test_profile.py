"""torch's profiler and our timeline as one trace."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.cli.main import main
from quorate.core.errors import ConfigurationError
from quorate.records.records import Recorder, records_of
from quorate.records.rows import Start, Step
from quorate.report.trace import Profile, write_trace
from tests.support.made_records import make_run


def recorded(folder: Path) -> tuple[Path, float]:
    """A run of one step, which the profiler watches; where its trace is, and when the part named `mark` began."""
    recorder = Recorder(records_of(folder, 0))
    now = time.monotonic()
    recorder.write(
        Start(rank=0, size=1, host="here", pid=os.getpid(), clock="monotonic", now=now, wall=time.time(), device="cpu",
              seed=None)
    )  # fmt: skip
    begin = time.monotonic()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        mark = time.monotonic()
        with torch.profiler.record_function("mark"):
            x = torch.ones(4, 4, requires_grad=True)
            (x @ x).sum().backward()
    end = time.monotonic()
    recorder.step(Step(step=1, optimizer="1", round=1, begin=begin, arrive=end, end=end))
    recorder.close()
    profiler.export_chrome_trace(str(folder / "profile.json"))
    return folder / "profile.json", mark - begin


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float, Path]:
    folder = tmp_path_factory.mktemp("run")
    profile, mark = recorded(folder)
    path = folder / "rank-0.1790000000.pt.trace.json.gz"
    write_trace(folder, path, [Profile.read(0, profile), Profile.read(0, profile)])
    return json.loads(gzip.decompress(path.read_bytes())), mark, folder


def test_both_are_on_one_timeline(merged: tuple[dict[str, Any], float, Path]) -> None:
    document, mark, _ = merged
    (step,) = [event for event in document["traceEvents"] if event["name"] == "step 1"]
    marks = [event for event in document["traceEvents"] if event["name"] == "mark"]
    assert len(marks) == 2 and step["ts"] == 0
    for event in marks:
        assert event["ts"] == pytest.approx(mark * 1e6, abs=500_000)  # a busy machine may come between the two
        assert event["ts"] + event["dur"] <= step["dur"] + 20_000


def test_it_is_what_perfettos_importer_reads(merged: tuple[dict[str, Any], float, Path]) -> None:
    """Processes and threads are whole numbers, slices of a thread nest, arrows have both ends."""
    events = merged[0]["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named[0] == "rank 0 (here)" and sum("torch.profiler" in name for name in named.values()) >= 2
    arrows: dict[str, str] = {}
    for event in events:
        assert type(event["pid"]) is int and type(event["tid"]) is int and event["pid"] in named
        assert event["ph"] in "MXisfC" and type(event["name"]) is str
        assert event["ph"] == "M" or event["ts"] >= 0
        if event["ph"] in "sf":
            arrows[event["id"]] = arrows.get(event["id"], "") + event["ph"]
    assert arrows and all(sorted(ends) == ["f", "s"] for ends in arrows.values())
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():
        open_ends: list[float] = []
        for begin, end in sorted(slices, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= begin + 0.01:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.01, "slices of a thread lie within each other"
            open_ends.append(end)


def test_it_is_what_tensorboards_plugin_reads(merged: tuple[dict[str, Any], float, Path]) -> None:
    document = merged[0]
    assert document["schemaVersion"] == 1 and document["deviceProperties"] == []
    operators = [event for event in document["traceEvents"] if event.get("cat") == "cpu_op"]
    assert operators and all({"name", "ts", "dur", "pid", "tid", "args"} <= event.keys() for event in operators)


def test_on_the_command_line(
    merged: tuple[dict[str, Any], float, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = merged[2]
    words = ("trace", str(folder), "--output", str(tmp_path / "both.json"))
    for profile, status in (
        (f"0={folder / 'profile.json'}", 0),
        ("profile.json", 2),
        (f"7={folder / 'profile.json'}", 2),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--profile", profile])
        assert ended.value.code == status
    said = capsys.readouterr().err
    assert 'takes RANK=FILE, such as 0=profile.json, not "profile.json"' in said
    assert "rank 7 has left no records" in said


@pytest.mark.parametrize("text", ["", "[]", '{"traceEvents": []}', '{"traceEvents": 3, "baseTimeNanoseconds": 1}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(ConfigurationError, match="--profile 0="):
        Profile.read(0, tmp_path / "x")


def test_virtual_workers_have_no_time_of_day(tmp_path: Path, merged: tuple[dict[str, Any], float, Path]) -> None:
    profile = Profile.read(0, merged[2] / "profile.json")
    with pytest.raises(ConfigurationError, match="is it virtual"):
        write_trace(make_run(tmp_path, is_virtual=True), tmp_path / "x.json", [profile])
