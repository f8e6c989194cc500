"""Processes that are forked: their status, their log, when they begin, and that none outlives the zygote."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quorate.launch.local.children import Child, Command, StartedRanks, tell, tell_group
from quorate.launch.local.console import QuietConsole
from quorate.launch.local.orphans import Guard
from quorate.launch.local.process_group import Crew
from quorate.launch.warm import forks as forks_module
from quorate.launch.warm.forks import Forks, keeping, kept
from quorate.wire.board import MemoryBoard
from tests.support.launching import LIMIT, is_running, until
from tests.support.zygote import ForksOfThis

SCRIPT = """
import os, sys, time
print(os.environ["WORD"], os.getpid() == os.getsid(0), sys.argv[1:], flush=True)
if sys.argv[1] == "waits":
    time.sleep(600)
sys.exit(7)
"""
pytestmark = pytest.mark.skipif(not forks_module.CAN_FORK, reason="processes that have imported much are not forked")


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


def environment() -> dict[str, str]:
    return {"WORD": "hello", "PATH": os.environ["PATH"]}


def log(folder: Path, rank: int) -> QuietConsole:
    return QuietConsole(folder / f"rank-{rank}.log")


def test_a_process_ends_with_its_own_status_and_its_log_goes_on(
    tmp_path: Path, command: Callable[[str], Command]
) -> None:
    (tmp_path / "rank-5.log").write_text("before\n")
    with Forks(imported=[]) as forks:
        assert forks.wait(LIMIT)
        children = [forks.start(command("ends"), environment(), log(tmp_path, rank)) for rank in (5, 6)]
        assert [ended(child) for child in children] == [7, 7]
    assert (tmp_path / "rank-5.log").read_text() == "before\nhello True ['ends']\n"
    assert (tmp_path / "rank-6.log").read_text() == "hello True ['ends']\n"


def test_one_that_is_killed_says_so_and_another_lives_on(tmp_path: Path, command: Callable[[str], Command]) -> None:
    with Forks(imported=[]) as forks:
        assert forks.wait(LIMIT)
        first, second = (forks.start(command("waits"), environment(), log(tmp_path, rank)) for rank in (1, 2))
        assert first.poll() is None and first.pid is not None and second.pid is not None
        os.kill(first.pid, signal.SIGSTOP)
        os.kill(first.pid, signal.SIGKILL)
        assert ended(first) == -signal.SIGKILL
        assert second.poll() is None
    until(lambda: not is_running(second.pid or 0), "the zygote's processes have ended with it")


def test_a_process_begins_where_it_was_started_when_the_zygote_is_ready(
    tmp_path: Path, command: Callable[[str], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Forks(imported=[]) as forks:
        child = forks.start(command("ends"), environment(), log(tmp_path, 1))
        assert [child.pid, child.poll(), forks.is_ready] == [None, None, False]
        until(lambda: child.poll() is not None or child.pid is not None, "it has begun")
        assert forks.is_ready and ended(child) == 7


def test_a_signal_before_it_has_begun_is_its_end(tmp_path: Path, command: Callable[[str], Command]) -> None:
    with Forks(imported=[]) as forks:
        child = forks.start(command("ends"), environment(), log(tmp_path, 1))
        tell(child, signal.SIGINT)
        assert forks.wait(LIMIT) and child.poll() == -signal.SIGINT and child.pid is None
    assert not (tmp_path / "rank-1.log").exists()


@pytest.mark.parametrize("to_group", [False, True])
def test_a_signal_after_that_reaches_it(tmp_path: Path, command: Callable[[str], Command], *, to_group: bool) -> None:
    with Forks(imported=[]) as forks:
        child = forks.start(command("waits"), environment(), log(tmp_path, 1))
        until(lambda: child.poll() is None and (tmp_path / "rank-1.log").exists(), "it has begun")
        (tell_group if to_group else tell)(child, signal.SIGTERM)
        assert ended(child) == -signal.SIGTERM


def test_what_begins_late_is_guarded_from_then_on(
    tmp_path: Path, command: Callable[[str], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = list[int]()
    with Forks(imported=[]) as forks, Guard() as guard, Crew([], MemoryBoard(), guard=guard) as crew:
        monkeypatch.setattr(guard, "begun", guarded.append)
        child = forks.start(command("waits"), environment(), log(tmp_path, 1))
        crew.join(child)
        assert guarded == []
        assert not crew.watch(1.0) and forks.wait(LIMIT) and not crew.watch(0.1)
        assert set(guarded) == {child.pid}


@pytest.mark.parametrize("why", ["it cannot be started", "it is not to be forked"])
def test_where_there_is_no_zygote_programs_are_started(
    tmp_path: Path, command: Callable[[str], Command], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "it cannot be started":
        monkeypatch.setattr(forks_module, "ZYGOTE", "quorate.no_such_module")
    else:
        monkeypatch.setattr(forks_module, "CAN_FORK", False)
    with Forks(imported=[]) as forks:
        child = forks.start(command("ends"), environment(), log(tmp_path, 1))
        assert ended(child) == 7 and not forks.wait() and forks.has_ended
        assert ("No module named quorate.no_such_module" in forks.last_words) == (why == "it cannot be started")
    assert (tmp_path / "rank-1.log").read_text() == "hello True ['ends']\n"


def test_a_zygote_that_cannot_fork_says_so(
    tmp_path: Path, command: Callable[[str], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, forked = os.fork, list[bool]()

    def fork_once() -> int:
        if forked:
            raise OSError(errno.EAGAIN, "in the zygote")
        forked.append(True)
        return fork()

    monkeypatch.setattr(os, "fork", fork_once)
    with ForksOfThis() as forks:
        assert forks.wait(LIMIT)
        for _ in range(2):
            with pytest.raises(BlockingIOError, match="no process can be forked: Resource temporarily unavailable"):
                forks.start(command("ends"), environment(), log(tmp_path, 1))
        assert forks.is_ready


def test_what_is_kept_starts_the_first_worker_too(tmp_path: Path, command: Callable[[str], Command]) -> None:
    with Forks(imported=[]) as forks, keeping(forks):
        assert forks.wait(LIMIT) and kept() is forks
        with StartedRanks(command("ends"), 1, tmp_path, starter=kept()) as ranks:
            child = ranks.start(0, environment())
            assert not isinstance(child, subprocess.Popen) and ended(child) == 7
    assert kept() is None


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
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240.0, check=False)


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
    said = run_really(tmp_path, "--no-fork", "train.py")
    assert said.returncode == 0, said.stderr
    assert len(set(parents(tmp_path))) == 1
