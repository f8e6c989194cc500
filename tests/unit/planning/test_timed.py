"""A script that divides its model is timed alone, and on two workers over each axis."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.cli.planner import timed as module
from quorate.cli.planner.timed import mean_of, timed
from tests.support.planned_scripts import DIVIDED


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    path = tmp_path / "train.py"
    path.write_text(DIVIDED)
    return str(path)


@pytest.mark.slow
def test_two_workers_time_each_axis(script: str) -> None:
    told = timed(script, ["10"])
    pieces = told["times"]["pieces"]
    assert set(pieces) == {"shards", "tensor"}
    for one in pieces.values():
        assert all(one[what] > 0 for what in ("outside", "model", "backward", "update"))
    assert pieces["shards"]["fixed"] == [0, 0]
    assert all(0 < share <= 1 for share in pieces["tensor"]["fixed"])


@pytest.mark.slow
def test_a_script_that_ends_there_is_timed_alone(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    """By then it has made as many steps alone."""
    Path(script).write_text(DIVIDED.replace("quorate.join()", "if quorate.join().size > 1: sys.exit()"))
    assert timed(script, ["10"], ["shards"])["times"]["pieces"] == {}
    assert f"quorate: shards=2 was not timed: {script} has ended before its optimizer.step()" in capfd.readouterr().err


def test_seconds_of_runs_at_once_are_means() -> None:
    one, other = ({"blocks": {"a": [1.0 * by, 2.0 * by]}, "examples": 4, "steps": 4} for by in (1, 3))
    assert mean_of([one, other]) == {"blocks": {"a": [2.0, 4.0]}, "examples": 4, "steps": 4}


@pytest.mark.slow
def test_it_runs_as_often_at_once_as_asked_for(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path(script).write_text(DIVIDED.replace("quorate.join()", 'print("here"); quorate.join()'))
    told = timed(script, ["10"], axes=(), at_once=2)
    assert capfd.readouterr().err.count("here") == 2
    assert told["times"]["blocks"] and told["times"]["examples"] == 10


@pytest.mark.slow
def test_one_core_is_for_one_worker(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 1)
    assert timed(script, ["10"])["times"]["pieces"] == {}
