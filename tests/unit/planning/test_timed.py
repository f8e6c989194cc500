"""A script that divides its model is timed alone, and on two workers over each axis."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorate.cli.planner import trials as module
from quorate.cli.planner.trials import mean_of, timed
from quorate.launch.warm.run_server import RunServer
from quorate.planning import timing_in_pieces
from quorate.sharding.traffic import Traffic
from tests.support.planned_scripts import DIVIDED


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    path = tmp_path / "train.py"
    path.write_text(DIVIDED)
    return str(path)


@pytest.mark.slow
def test_two_workers_time_each_axis(server: RunServer, script: str) -> None:
    measurements = timed(script, ["10"], server=server)
    pieces = measurements["times"]["pieces"]
    assert set(pieces) == {"shards", "tensor"}
    for piece in pieces.values():
        assert all(piece[name] > 0 for name in ("outside", "model", "backward", "update"))
        assert all(piece["processor"][name] > 0 for name in ("model", "backward", "update"))
    assert 0 < measurements["times"]["processor"] <= 1 and "crowding" not in measurements["times"]
    assert pieces["shards"]["fixed"] == [0, 0]
    assert all(0 < share <= 1 for share in pieces["tensor"]["fixed"])


@pytest.mark.slow
def test_a_script_that_ends_there_is_timed_alone(
    server: RunServer, script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """By then it has made as many steps alone."""
    Path(script).write_text(DIVIDED.replace("quorate.join()", "if quorate.join().size > 1: sys.exit()"))
    assert timed(script, ["10"], ["shards"], server=server)["times"]["pieces"] == {}
    said = capfd.readouterr().err
    assert "quorate: shards=2 was not timed: " in said and "no worker used it" in said


def test_seconds_of_runs_at_once_are_means() -> None:
    first, second = ({"blocks": {"a": [1.0 * by, 2.0 * by]}, "examples": 4, "steps": 4} for by in (1, 3))
    assert mean_of([first, second]) == {"blocks": {"a": [2.0, 4.0]}, "examples": 4, "steps": 4}


@pytest.mark.slow
def test_a_script_without_end_is_timed_for_a_while(server: RunServer, script: str) -> None:
    times = timed(script, ["1000000000"], axes=(), server=server)["times"]
    assert times["steps"] > 10 and "seconds" not in times
    assert len(times["spread"]) == times["steps"] and times["spread"] == sorted(times["spread"])
    assert statistics.median(times["spread"]) == pytest.approx(1.0, rel=0.02)


@pytest.mark.slow
def test_a_crowd_is_timed_as_one(server: RunServer, script: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Two workers for each of two cores: after two runs at once, as asked for, come four."""
    Path(script).write_text(DIVIDED.replace("quorate.join()", 'print("here"); quorate.join()'))
    measurements = timed(script, ["10"], axes=(), at_once=2, crowd=2.0, server=server)
    said = capfd.readouterr().err
    assert said.count("here") == 6 and "quorate: running it 4 times at once\n" in said
    assert measurements["times"]["crowding"] >= 1.0
    assert measurements["times"]["blocks"] and measurements["times"]["examples"] == 10


def test_a_crowd_takes_longer_than_its_share(server: RunServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four at once take 2.5 times as long as two on these two cores, where their share says twice."""
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    runs: list[int] = []

    def several(does: object, count: int) -> list[dict[str, object]]:
        runs.append(count)
        by = {2: 1.0, 4: 2.5, 8: 1.0}[count]
        times = {
            "blocks": {"a": [by, 2 * by]},
            "rest": [by, by],
            "update": by,
            "outside": by,
            "seconds": [2.0, 4.0, 6.0],
        }
        return [{"times": times, "cuts": {}}] * count

    monkeypatch.setattr(module, "_several", several)
    assert timed("x.py", [], (), at_once=2, server=server)["times"]["spread"] == [0.5, 0.5, 1.0, 1.0, 1.5, 1.5]
    crowded = timed("x.py", [], (), at_once=2, crowd=2.0, server=server)["times"]
    assert len(crowded["spread"]) == 12 and "seconds" not in crowded, "of the four"
    runs.clear()
    assert timed("x.py", [], (), at_once=2, crowd=2.0, server=server)["times"]["crowding"] == pytest.approx(1.25)
    assert timed("x.py", [], (), at_once=2, crowd=100.0, server=server)["times"]["crowding"] == 1.0, (
        "never less than its share"
    )
    assert runs == [2, 4, 2, 8]


@pytest.mark.slow
def test_one_core_is_for_one_worker(server: RunServer, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 1)
    assert timed(script, ["10"], server=server)["times"]["pieces"] == {}


def test_the_clock_of_pieces_stops_during_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]

    class Slow:
        def wait(self) -> str:
            seconds[0] += 5.0
            return "there"

    monkeypatch.setattr(Traffic, "wait", Traffic.wait)  # what `Working` replaces is put back
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    clock: Any = SimpleNamespace(now=lambda: seconds[0])
    work: Any = Slow()
    working = timing_in_pieces.Working()
    seconds[0] += 1.0
    assert Traffic().wait(work, clock) == "there"
    seconds[0] += 2.0
    assert working() == 3.0
