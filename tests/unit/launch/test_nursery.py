"""Workers that are forked for a run under way: their status, their log, and that none outlives the nursery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from quorate.launch.local.children import Child, Command, Expected
from quorate.launch.local.orphans import Guard
from quorate.launch.local.process_group import Crew
from quorate.launch.warm import nursery as nursery_module
from quorate.launch.warm.nursery import Nursery
from quorate.wire.board import MemoryBoard
from tests.support.launching import is_running, until

SCRIPT = """
import os, sys, time
print(os.environ["WORD"], os.getpid() == os.getsid(0), sys.argv[1:], flush=True)
if sys.argv[1] == "waits":
    time.sleep(600)
sys.exit(7)
"""
pytestmark = pytest.mark.skipif(not nursery_module.CAN_FORK, reason="processes that have imported much are not forked")


def begun(nursery: Nursery, rank: int) -> Child:
    children: list[Child] = []

    def is_there() -> bool:
        child = nursery.start(rank, {"WORD": "hello", "PATH": os.environ["PATH"]})
        children.extend([] if child is None else [child])
        return bool(children)

    until(is_there, "the nursery is ready")
    return children[0]


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str], Command]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return lambda word: Command(script=str(script), arguments=[word])


def ended(child: Child) -> int:
    until(lambda: child.poll() is not None, "it has ended")
    status = child.poll()
    assert status is not None
    return status


def test_a_worker_ends_with_its_own_status_and_its_log_goes_on(
    tmp_path: Path, command: Callable[[str], Command]
) -> None:
    (tmp_path / "rank-5.log").write_text("before\n")
    with Nursery(command("ends"), tmp_path, imported=[]) as nursery:
        assert ended(begun(nursery, 5)) == 7
        other = begun(nursery, 6)
        assert ended(other) == 7
    assert (tmp_path / "rank-5.log").read_text() == "before\nhello True ['ends']\n"
    assert (tmp_path / "rank-6.log").read_text() == "hello True ['ends']\n"


def test_a_worker_that_is_killed_says_so_and_another_lives_on(
    tmp_path: Path, command: Callable[[str], Command]
) -> None:
    with Nursery(command("waits"), tmp_path, imported=[]) as nursery:
        first, second = begun(nursery, 1), begun(nursery, 2)
        assert first.poll() is None and first.pid is not None and second.pid is not None
        os.kill(first.pid, signal.SIGSTOP)
        os.kill(first.pid, signal.SIGKILL)
        assert ended(first) == -signal.SIGKILL
        assert second.poll() is None
    until(lambda: not is_running(second.pid or 0), "the nursery's workers have ended with it")
    assert ended(second) == -signal.SIGKILL


def test_one_that_cannot_be_used_starts_nobody(
    tmp_path: Path, command: Callable[[str], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(nursery_module, "SERVER", "quorate.no_such_module")
        with Nursery(command("ends"), tmp_path, imported=[]) as nursery:
            end = time.monotonic() + 5.0
            while time.monotonic() < end and nursery._program is not None and not nursery._program.has_ended:
                assert nursery.start(3, {}) is None
            assert nursery.start(3, {}) is None
    with monkeypatch.context() as patched:
        patched.setattr(nursery_module, "CAN_FORK", False)
        with Nursery(command("ends"), tmp_path, imported=[]) as nursery:
            assert nursery.start(3, {}) is None


class Coming:
    """A nursery that is ready after so many looks, or never."""

    def __init__(self, looks: int, child: Child | None) -> None:
        self.looks, self._child, self.is_coming = looks, child, True

    def start(self, rank: int, environment: Mapping[str, str]) -> Child | None:
        self.looks -= 1
        self.is_coming = self.looks > 0 or self._child is not None
        return self._child if self.looks <= 0 else None


class Sleeping:
    """A process in a group of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()


def unused() -> Child:
    raise AssertionError("no program is started")


@pytest.mark.parametrize("to_group", [False, True])
def test_a_worker_begins_when_the_nursery_is_ready(*, to_group: bool) -> None:
    born = Sleeping()
    worker = Expected(4, {}, Coming(3, born), unused)
    assert [worker.poll(), worker.pid, worker.poll(), worker.pid] == [None, None, None, None]
    assert [worker.poll(), worker.pid] == [None, born.pid]
    worker.send(signal.SIGTERM, to_group=to_group)
    assert ended(worker) == -signal.SIGTERM


def test_what_begins_late_is_guarded_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    born, guarded = Sleeping(), list[int]()
    with Guard() as guard, Crew([], MemoryBoard(), guard=guard) as crew:
        monkeypatch.setattr(guard, "begun", guarded.append)
        crew.join(Expected(0, {}, Coming(3, born), unused))
        assert not crew.watch(0.0) and guarded == []
        assert not crew.watch(1.0) and set(guarded) == {born.pid}


def test_a_signal_before_it_has_begun_is_its_end() -> None:
    births = Coming(3, None)
    worker = Expected(4, {}, births, unused)
    assert worker.poll() is None
    worker.send(signal.SIGINT, to_group=False)
    assert [worker.poll(), births.looks] == [-signal.SIGINT, 2]


def test_a_program_is_started_where_the_nursery_does_not_come() -> None:
    born = Sleeping()
    worker = Expected(4, {}, Coming(2, None), lambda: born)
    assert [worker.poll(), worker.pid] == [None, None]
    assert [worker.poll(), worker.pid] == [None, born.pid]
    worker.send(signal.SIGKILL, to_group=True)
    assert ended(worker) == -signal.SIGKILL


PARENTS = """
import os, sys, time
from pathlib import Path
print("of", os.getppid(), flush=True)
Path(f"began-{os.environ['RANK']}").touch()
while len(list(Path.cwd().glob("began-*"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
if sys.argv[1:] == ["fails"] and os.environ["RANK"] == "2":
    raise ValueError("on purpose")
"""
"""A script that imports nothing heavy, so that only what starts its workers does."""


def parents(folder: Path) -> list[str]:
    (run,) = (folder / "runs").iterdir()
    logs = [(run / f"rank-{rank}.log").read_text() for rank in range(3)]
    return [next(line.split()[1] for line in log.splitlines() if line.startswith("of ")) for log in logs]


def run_really(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In a program that is started, not forked."""
    (folder / "train.py").write_text(PARENTS)
    command = [sys.executable, "-m", "quorate.cli.main", "run", "-n", "3", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60.0, check=False)


@pytest.mark.slow
def test_all_but_the_first_are_forked(tmp_path: Path) -> None:
    """From one process, which is another one than the launcher."""
    said = run_really(tmp_path, "train.py", "fails")
    first, *others = parents(tmp_path)
    assert said.returncode == 1
    assert len(set(others)) == 1 and first not in others
    assert "ValueError: on purpose" in said.stderr and "rank 2 " in said.stderr


@pytest.mark.slow
def test_cold_forks_none(tmp_path: Path) -> None:
    said = run_really(tmp_path, "--cold", "train.py")
    assert said.returncode == 0, said.stderr
    assert len(set(parents(tmp_path))) == 1
