"""The runs of a comparison on hosts, with agents on this machine in the place of ssh; scripts that never join."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quorate.compare.execute import Executed, Interrupt, execute
from quorate.compare.grid import Cell
from quorate.compare.plan import Arm, Comparison, Subject, read_plan
from quorate.launch.local.processes import Conclusion
from quorate.launch.warm.run_server import RunServer
from tests.support.hosts_here import ssh_to_here
from tests.support.launching import is_running, until

SCRIPT = """
import os, sys, time
from pathlib import Path
from quorate.launch.run.overrides import overrides_here
from quorate.wire.board import SocketBoard
from quorate.wire.used import note_used

note_used(SocketBoard(os.environ["QUORATE_BOARD"].removeprefix("unix:")), "strategy")
strategy, rank, here = overrides_here().strategy, os.environ["RANK"], Path(sys.argv[1])
print(strategy, rank, os.environ["GROUP_RANK"], os.environ["MASTER_ADDR"] != "", os.environ["OF_THE_TEST"])
if strategy == "stays" and not (here / "go").exists():
    (here / f"pid-{rank}").write_text(f"{os.getpid()} {os.getppid()}")
    time.sleep(600)
"""


class _Watcher:
    """Looks on."""

    def __init__(self, on_look: Callable[[Cell], None]) -> None:
        self._on_look = on_look

    def plans(self, cells: Sequence[Cell]) -> None: ...
    def begins(self, cell: Cell, folder: Path) -> None: ...
    def ends(self, cell: Cell, folder: Path, ended: Conclusion, seconds: float) -> None: ...
    def chooses(self, arm: str, factor: float | None) -> None: ...

    def looks(self, cell: Cell, folder: Path) -> None:
        self._on_look(cell)


def _plan(folder: Path, *arms: str, **changed: Any) -> Comparison:
    (folder / "train.py").write_text(SCRIPT)
    chosen: dict[str, Any] = {"hosts": "a,b:2", "ssh": ssh_to_here(folder), "env": ("OF_THE_TEST=7",), **changed}
    return Comparison(
        subject=Subject(kind="script", name=str(folder / "train.py"), arguments=[str(folder)]),
        metric=None,
        workers=3,
        world="real",
        arms=[Arm.of(name, {}) for name in arms],
        seeds=[0],
        **chosen,
    )


def _go(plan: Comparison, folder: Path, stop: Interrupt, on_look: Callable[[Cell], None]) -> Executed:
    with RunServer() as server:
        return execute(plan, folder, ["quorate", "compare"], server, _Watcher(on_look), stop)


def _outcome(folder: Path) -> Any:
    return json.loads((folder / "seed-0" / "outcome.json").read_text())


def test_an_interrupt_ends_all_and_what_is_missing_is_run_on_the_same_hosts(tmp_path: Path) -> None:
    folder, stop = tmp_path / "runs" / "x", Interrupt()
    pids = [tmp_path / f"pid-{rank}" for rank in range(3)]

    def look(cell: Cell) -> None:
        if not stop.asked and all(pid.exists() and pid.read_text() for pid in pids):
            stop.ask()

    plan = _plan(tmp_path, "good", "stays")
    plan.write(folder, ["quorate", "compare"])
    done = _go(plan, folder, stop, look)
    assert (done.statuses, done.is_interrupted) == ([0], True)
    those = [int(word) for pid in pids for word in pid.read_text().split()]
    until(lambda: not any(map(is_running, those)), "the end of workers and agents")
    logs = [(folder / "good" / "seed-0" / f"rank-{rank}.log").read_text() for rank in range(3)]
    assert logs == ["good 0 0 True 7\n", "good 1 1 True 7\n", "good 2 1 True 7\n"]
    about = json.loads((folder / "good" / "seed-0" / "run.json").read_text())
    assert (about["hosts"], about["workers"], about["env"]) == ("a,b:2", 3, ["OF_THE_TEST=7"])
    (tmp_path / "go").touch()
    again = _go(read_plan(folder), folder, Interrupt(), lambda cell: None)
    assert (again.statuses, again.is_interrupted) == ([0, 0], False)
    assert (folder / "stays" / "seed-0" / "rank-2.log").read_text() == "stays 2 1 True 7\n"


def test_a_host_that_is_not_there_any_more_fails_that_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    plan = _plan(tmp_path, "good", "other", hosts="a,away:2")
    plan.write(folder, ["quorate", "compare"])
    assert _go(plan, folder, Interrupt(), lambda cell: None).statuses == [2, 2]
    for name in ("good", "other"):
        assert _outcome(folder / name)["why"] == "host away cannot be reached by ssh: no route to away"
