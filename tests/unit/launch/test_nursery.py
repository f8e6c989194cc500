"""Workers that are forked for a run under way: their status, their log, and that none outlives the nursery."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quorate.launch.local.children import Child
from quorate.launch.local.processes import Command
from quorate.launch.warm import nursery as nursery_module
from quorate.launch.warm.nursery import Nursery
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
    found: list[Child] = []

    def is_there() -> bool:
        child = nursery.start(rank, {"WORD": "hello", "PATH": os.environ["PATH"]})
        found.extend([] if child is None else [child])
        return bool(found)

    until(is_there, "the nursery is ready")
    return found[0]


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
        one, other = begun(nursery, 1), begun(nursery, 2)
        assert one.poll() is None and one.pid is not None and other.pid is not None
        os.kill(one.pid, signal.SIGSTOP)
        os.kill(one.pid, signal.SIGKILL)
        assert ended(one) == -signal.SIGKILL
        assert other.poll() is None
    until(lambda: not is_running(other.pid or 0), "the nursery's workers have ended with it")
    assert ended(other) == -signal.SIGKILL


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
