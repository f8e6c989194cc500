"""Agents and the launcher's end of them, with agents on this machine in the place of ssh; scripts that never join."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError
from quorate.launch.hosts import link
from quorate.launch.hosts.frames import MARK, Pipes
from quorate.launch.hosts.link import Link
from quorate.launch.hosts.reach import layout_from
from tests.support.hosts_here import ssh_to_here
from tests.support.launching import until


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    return ssh_to_here(tmp_path)


def begun(folder: Path, ssh: str, script: str, *more: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(textwrap.dedent(script))
    words = ["-m", "quorate.cli.main", "run", "--hosts", "a:1,b:2", "--ssh", ssh, "--name", "x", *more, "script.py"]
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = child.communicate(timeout=240.0)
    finally:
        child.kill()
    return child.returncode, out, err


RANKS = """
    import json, os, sys
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OF_THE_TEST", "NCCL_DEBUG")
    sys.stdout.write(json.dumps([os.environ[name] for name in names]) + f" {len(os.environ['QUORATE_TOKEN'])}\\n")
    sys.stdout.flush()
    sys.stderr.write("on stderr\\n")
"""


def test_each_worker_has_its_rank_and_its_log(tmp_path: Path, ssh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")  # which the login of a host does not have
    status, out, err = ended(begun(tmp_path, ssh, RANKS, "--env", "OF_THE_TEST=7"))
    assert status == 0, err
    logs = [(tmp_path / "runs" / "x" / f"rank-{rank}.log").read_text() for rank in range(3)]
    assert out == '["0", "3", "0", "1", "0", "7", "WARN"] 64\n' and "on stderr\n" in err
    lines = [next(line for line in log.splitlines() if line.startswith("[")).removesuffix(" 64") for log in logs]
    assert [json.loads(line) for line in lines] == [
        ["0", "3", "0", "1", "0", "7", "WARN"],
        ["1", "3", "0", "2", "1", "7", "WARN"],
        ["2", "3", "1", "2", "1", "7", "WARN"],
    ]
    assert all("on stderr\n" in log for log in logs)


WAITS = """
    import os, time
    from pathlib import Path
    Path(f"pid-{os.environ['RANK']}").write_text(f"{os.getpid()} {os.getppid()}")
    time.sleep(100)
"""
Waiting = tuple[subprocess.Popen[str], Callable[[int], list[int]]]


@pytest.fixture
def waiting(tmp_path: Path, ssh: str) -> Iterator[Waiting]:
    """A launcher, and what gives the processes of a rank: itself and its agent."""
    child = begun(tmp_path, ssh, WAITS)

    def processes(rank: int) -> list[int]:
        path = tmp_path / f"pid-{rank}"
        until(lambda: path.exists() and bool(path.read_text()))
        return [int(word) for word in path.read_text().split()]

    for rank in range(3):
        processes(rank)
    yield child, processes
    child.kill()
    child.communicate()


def are_gone(*pids: int) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")


@needs_proc
def test_an_interrupt_reaches_every_host(waiting: Waiting) -> None:
    child, processes = waiting
    pids = [pid for rank in range(3) for pid in processes(rank)]
    child.send_signal(signal.SIGINT)
    status, _, err = ended(child)
    assert status == 130 and "quorate: ended by SIGINT; every worker has ended\n" in err
    until(lambda: are_gone(*pids))


@needs_proc
def test_nobody_outlives_the_launcher(waiting: Waiting) -> None:
    child, processes = waiting
    pids = [pid for rank in range(3) for pid in processes(rank)]
    child.kill()
    child.communicate()
    until(lambda: are_gone(*pids))


@needs_proc
def test_a_host_that_is_lost_is_named(waiting: Waiting) -> None:
    child, processes = waiting
    os.kill(processes(2)[1], signal.SIGKILL)  # its agent
    until(lambda: are_gone(processes(1)[0], processes(2)[0]))
    os.kill(processes(0)[0], signal.SIGKILL)  # it has not joined, and would notice nothing
    status, _, err = ended(child)
    assert status == 1
    assert "lost: the connection to host b has ended" in err


def test_an_error_is_told_as_on_one_host(tmp_path: Path, ssh: str) -> None:
    status, _, err = ended(begun(tmp_path, ssh, "import os; os.environ['RANK'] == '2' and exit('of the test')"))
    assert status == 1
    assert "rank 2 (host" in err and "exited with status 1; its log is runs/x/rank-2.log\n  | of the test\n" in err


def test_an_agent_refuses_what_is_not_there(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "quorate.launch.hosts.agent"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        assert os.read(agent.stdout.fileno(), len(MARK)) == MARK
        pipes = Pipes(agent.stdout.fileno(), agent.stdin.fileno())
        hello = pipes.next()
        assert hello is not None and hello[0] == b"hello"
        about = {"rank": 0, "words": ["true"], "environment": {"QUORATE_RUN": str(tmp_path / "x")}}
        for folder, script, sentence in (
            (tmp_path / "nowhere", None, f"{tmp_path / 'nowhere'}: No such file or directory"),
            (tmp_path, "train.py", f"there is no script train.py in {tmp_path}"),
        ):
            pipes.send("start", json.dumps({**about, "folder": str(folder), "script": script}))
            assert pipes.next() == [b"refused", sentence.encode()]
        agent.stdin.close()
        assert agent.wait(10) == 0


def test_a_host_with_another_version_is_refused(ssh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "version_of", lambda package: "0.0.7")
    connection = Link(layout_from("a").places[0], ssh, lambda kind, rank, data: None)
    with pytest.raises(
        ConfigurationError, match="host a has quorate .*, but this host has 0.0.7; install the same version"
    ):
        connection.connect()
    connection.close()
