"""The runs of a comparison are all run, whatever becomes of any of them, and what was begun can be gone on with."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quorate.compare import execute as execution
from quorate.compare import grid
from quorate.compare.execute import Executed, Interrupt, execute
from quorate.compare.grid import Cell
from quorate.compare.plan import Arm, Comparison, Metric, Subject, read_plan
from quorate.core.errors import ConfigurationError
from quorate.launch.local.processes import Conclusion
from quorate.launch.warm.forks import CAN_FORK
from quorate.launch.warm.request import RunRequest
from quorate.launch.warm.run_server import RunServer
from quorate.report.reading.planned import planned_in
from tests.support.launching import is_running, until

COMMAND = ["quorate", "compare"]
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from quorate.records.records import Recorder, records_of
from quorate.records.rows import Log, Step
from quorate.launch.run.overrides import overrides_here
from quorate.wire.board import SocketBoard
from quorate.wire.used import note_used

note_used(SocketBoard(os.environ["QUORATE_BOARD"].removeprefix("unix:")), "strategy")
rank, folder, told = int(os.environ["RANK"]), Path(os.environ["QUORATE_RUN"]), overrides_here()
arm, here = told.strategy, Path(sys.argv[1])
if rank == 0:
    with open(here / "order", "a") as order:
        order.write(f"{arm} {told.seed} {told.learning_rate_factor} {told.imbalance}\\n")
recorder = Recorder(records_of(folder, rank))
for step in range(1, 41):
    recorder.step(Step(step=step, optimizer="1", round=step, begin=step, arrive=step, end=step, examples=2))
quality = 1 - abs((told.learning_rate_factor or 1) - {"good": 2, "fair": 0.5}.get(arm, 1))
recorder.write(Log(step=40, time=40.5, values={"top1": quality}))
if arm == "fails" and rank == 1 or (here / f"fail-{arm}-{told.seed}").exists():
    raise ValueError("of the script")
if arm == "stays" and not (here / "go").exists():
    if (here / "deaf").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (here / f"pid-{rank}").write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RunServer]:
    with RunServer(imported=()) as server:
        yield server


class _Notes:
    """Keeps what a watcher is told."""

    def __init__(self, on_look: Callable[[Cell], None] = lambda cell: None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._on_look = on_look

    def plans(self, cells: Sequence[Cell]) -> None:
        self.told.append(("plans", len(cells)))

    def begins(self, cell: Cell, folder: Path) -> None:
        self.told.append(("begins", cell.in_words, folder.is_dir()))

    def looks(self, cell: Cell, folder: Path) -> None:
        self._on_look(cell)

    def ends(self, cell: Cell, folder: Path, ended: Conclusion, seconds: float) -> None:
        self.told.append(("ends", cell.in_words, ended.status))

    def chooses(self, arm: str, factor: float | None) -> None:
        self.told.append(("chooses", arm, factor))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "x"


def _plan(script: Path, *arms: str, seeds: Sequence[int] = (0, 1), **chosen: Any) -> Comparison:
    return Comparison(
        subject=Subject(kind="script", name=str(script), arguments=[str(script.parent)]),
        metric=Metric(name="top1", higher_is_better=True),
        workers=2,
        world="real",
        arms=[Arm.of(name, {}) for name in arms],
        seeds=seeds,
        **chosen,
    )


def test_a_run_knows_the_numbers_of_workers_of_its_comparison(script: Path, folder: Path, server: RunServer) -> None:
    plan = _plan(script, "a", seeds=(0,))
    scaled = [plan.arms[0].scaled(count, batch=None, is_baseline=count == 1) for count in (1, 2)]
    _go(replace(plan, arms=scaled, price=2.0), folder, server, _Notes())
    runs = [json.loads((folder / arm.name / "seed-0" / "run.json").read_text()) for arm in scaled]
    assert [(run["workers"], run["scale"], run["price"]) for run in runs] == [(1, [1, 2], 2.0), (2, [1, 2], 2.0)]


def _go(plan: Comparison, folder: Path, server: RunServer, notes: _Notes, stop: Interrupt | None = None) -> Executed:
    if not folder.exists():
        plan.write(folder, COMMAND)
    return execute(plan, folder, COMMAND, server, notes, stop or Interrupt())


def _order(script: Path) -> list[str]:
    return (script.parent / "order").read_text().splitlines()


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("is_forking", [True, False] if CAN_FORK else [False])
def test_all_are_run_in_turn_and_kept(script: Path, folder: Path, is_forking: bool) -> None:
    notes = _Notes()
    with RunServer(is_forking=is_forking, imported=()) as server:
        done = _go(_plan(script, "good", "other", imbalance="rank:0:1ms"), folder, server, notes)
    assert (done.statuses, done.is_interrupted) == ([0, 0, 0, 0], False)
    order = [f"{run} None rank:0:1ms" for run in ("good 0", "other 0", "other 1", "good 1")]
    assert _order(script) == order
    assert notes.told[0] == ("plans", 4)
    assert notes.told[1:3] == [("begins", "good, seed 0", True), ("ends", "good, seed 0", 0)]
    run = folder / "other" / "seed-1"
    outcome = _json(run / "outcome.json")
    assert (outcome["status"], outcome["why"]) == (0, None)
    about = _json(run / "run.json")
    assert about["command"] == COMMAND
    expected = {"strategy": "other", "seed": 1, "workers": 2, "world": "real", "imbalance": "rank:0:1ms"}
    assert {key: about[key] for key in expected} == expected
    assert {"rank-0.jsonl", "rank-1.jsonl", "rank-0.log", "rank-1.log"} <= {path.name for path in run.iterdir()}
    assert read_plan(folder).warm_up_steps == 4
    planned = planned_in(folder)
    assert [arm.runs[1] for arm in planned.arms] == [folder / "good" / "seed-1", run]


def test_a_run_that_fails_is_kept_and_the_others_go_on(script: Path, folder: Path, server: RunServer) -> None:
    notes = _Notes()
    done = _go(_plan(script, "fails", "good"), folder, server, notes)
    assert done.statuses == [1, 0, 0, 1]
    outcome = _json(folder / "fails" / "seed-1" / "outcome.json")
    assert outcome["status"] == 1
    log = folder / "fails" / "seed-1" / "rank-1.log"
    assert re.fullmatch(rf"rank 1 \(host .*\) exited with status 1; its log is {re.escape(str(log))}", outcome["why"])
    assert "ValueError: of the script" in log.read_text()
    assert ("ends", "good, seed 1", 0) in notes.told


def test_a_run_that_hangs_is_ended_and_the_others_go_on(script: Path, folder: Path, server: RunServer) -> None:
    done = _go(_plan(script, "stays", "good", seeds=[3], timeout=1.0), folder, server, _Notes())
    assert done.statuses == [124, 0]
    why = "it had not ended after 1 seconds, the limit of --timeout"
    outcome = _json(folder / "stays" / "seed-3" / "outcome.json")
    assert (outcome["status"], outcome["why"]) == (124, why)


@pytest.fixture
def long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are asked to leave are not stopped by their launcher before the test has run out of time."""
    monkeypatch.setattr(grid, "RunRequest", partial(RunRequest, grace=600.0))
    monkeypatch.setattr(execution, "PATIENCE", 600.0)


@pytest.mark.timeout(30)
@pytest.mark.usefixtures("long_grace")
def test_a_launcher_that_does_not_end_is_killed_with_its_workers(
    script: Path, folder: Path, server: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "PATIENCE", 0.2)
    (script.parent / "deaf").touch()
    done = _go(_plan(script, "stays", "good", seeds=[3], timeout=1.0), folder, server, _Notes())
    assert done.statuses == [124, 0]
    pids = [int((script.parent / f"pid-{rank}").read_text()) for rank in range(2)]
    until(lambda: not any(is_running(pid) for pid in pids), "the workers' end")


def test_what_was_interrupted_is_gone_on_with(script: Path, folder: Path, server: RunServer) -> None:
    stop = Interrupt()
    pids = [script.parent / f"pid-{rank}" for rank in range(2)]

    def look(cell: Cell) -> None:
        if cell.arm.name == "stays" and not stop.asked and all(pid.exists() and pid.read_text() for pid in pids):
            stop.ask()

    plan = _plan(script, "good", "stays", "other", seeds=[0])
    done = _go(plan, folder, server, _Notes(look), stop)
    assert (done.statuses, done.is_interrupted) == ([0], True)
    assert not any(is_running(int(pid.read_text())) for pid in pids)
    assert not (folder / "stays" / "seed-0" / "outcome.json").exists()
    assert not (folder / "other").exists()
    assert read_plan(folder).warm_up_steps == 4
    (script.parent / "go").touch()
    notes = _Notes()
    done = _go(read_plan(folder), folder, server, notes)
    assert (done.statuses, done.is_interrupted) == ([0, 0, 0], False)
    assert notes.told[0] == ("plans", 2)
    assert [line.split()[0] for line in _order(script)] == ["good", "stays", "stays", "other"]
    assert "KeyboardInterrupt" in (folder / "stays" / "seed-0.interrupted-1" / "rank-0.log").read_text()
    assert _json(folder / "stays" / "seed-0" / "outcome.json")["status"] == 0


def test_who_is_asked_before_the_first_run_runs_nothing(script: Path, folder: Path, server: RunServer) -> None:
    stop = Interrupt()
    stop.ask()
    assert _go(_plan(script, "good"), folder, server, _Notes(), stop).is_interrupted
    assert not (folder / "good").exists()


def test_learning_rates_are_searched_first_with_another_seed(script: Path, folder: Path, server: RunServer) -> None:
    (script.parent / "fail-other-2").touch()
    notes = _Notes()
    plan = _plan(script, "good", "other", "fair", seeds=[0, 1], learning_rates=(0.5, 1.0, 2.0))
    done = _go(plan, folder, server, notes)
    assert done.statuses == [0, 1, 0, 1, 0, 0, 0, 0, 1, *[0] * 6]
    chosen = [note for note in notes.told if note[0] == "chooses"]
    assert chosen == [("chooses", "good", 2.0), ("chooses", "other", None), ("chooses", "fair", 0.5)]
    assert read_plan(folder).chosen_learning_rates == {"good": 2.0, "fair": 0.5} == done.plan.chosen_learning_rates
    runs = [line.split()[:3] for line in _order(script)]
    assert [run[1] for run in runs] == ["2"] * 9 + ["0"] * 3 + ["1"] * 3
    assert sorted(runs[9:12]) == [["fair", "0", "0.5"], ["good", "0", "2.0"], ["other", "0", "None"]]
    assert _json(folder / "good" / "seed-0" / "run.json")["learning_rate_factor"] == 2.0
    again = _Notes()
    assert _go(read_plan(folder), folder, server, again).statuses == done.statuses
    assert again.told == [("plans", 0), *chosen]


def test_a_search_that_was_interrupted_is_gone_on_with(script: Path, folder: Path, server: RunServer) -> None:
    stop = Interrupt()
    pid = script.parent / "pid-1"
    plan = _plan(script, "good", "stays", seeds=[0], learning_rates=(1.0, 2.0))
    _go(plan, folder, server, _Notes(lambda cell: stop.ask() if pid.exists() and not stop.asked else None), stop)
    assert read_plan(folder).chosen_learning_rates == {}
    assert not (folder / "good" / "seed-0").exists()
    (script.parent / "go").touch()
    done = _go(read_plan(folder), folder, server, _Notes())
    assert done.statuses == [0] * 6
    assert done.plan.chosen_learning_rates == {"good": 2.0, "stays": 1.0}
    assert (folder / "stays" / "tuning" / "lr-1-seed-1.interrupted-1").is_dir()


@pytest.mark.timeout(30)
@pytest.mark.usefixtures("long_grace")
def test_a_second_interrupt_does_not_wait(script: Path, folder: Path, server: RunServer) -> None:
    text = script.read_text().replace("time.sleep(600)", "signal.signal(signal.SIGINT, note)\n    time.sleep(600)")
    note = "def note(signum, frame):\n    (here / f'noted-{rank}').write_text('x')\n    time.sleep(600)\n"
    script.write_text(note + text)
    stop = Interrupt()

    def look(cell: Cell) -> None:
        names = ("pid", "noted")[: stop.asked + 1]
        if stop.asked < 2 and all((script.parent / f"{name}-{rank}").exists() for name in names for rank in range(2)):
            stop.ask()

    done = _go(_plan(script, "stays", seeds=[0], timeout=50.0), folder, server, _Notes(look), stop)
    assert done.is_interrupted and stop.asked == 2
    log = (folder / "stays" / "seed-0" / "rank-0.log").read_text()
    assert "KeyboardInterrupt" not in log


def test_a_folder_that_cannot_be_written_to_is_one_sentence(script: Path, folder: Path, server: RunServer) -> None:
    plan = _plan(script, "good")
    plan.write(folder, COMMAND)
    (folder / "good").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot make the folder .*good/seed-0"):
        execute(plan, folder, COMMAND, server, _Notes(), Interrupt())


def test_a_killed_worker_is_named(script: Path, folder: Path, server: RunServer) -> None:
    script.write_text(script.read_text().replace('raise ValueError("of the script")', "os.kill(os.getpid(), 9)"))
    _go(_plan(script, "fails", seeds=[0]), folder, server, _Notes())
    why = _json(folder / "fails" / "seed-0" / "outcome.json")["why"]
    assert f"was killed by signal {int(signal.SIGKILL)} (SIGKILL)" in why
