"""`quorate run --hosts` over real ssh: output, logs, verdict and statuses as on one host, and nobody left anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.named_hosts import NamedHosts, missing
from tests.support.ssh_hosts import config_in, left_on, ssh_hosts

pytestmark = [pytest.mark.launchers, pytest.mark.skipif(bool(why := missing("sshd", "ssh")), reason=str(why))]

SCRIPT = textwrap.dedent(
    """
    import os, socket, subprocess, sys, time, torch, quorate
    from pathlib import Path

    world = quorate.join(timeout=60)
    print(f"rank {world.rank} on {socket.gethostname()}, {os.environ['LOCAL_RANK']}", file=sys.stderr, flush=True)
    torch.manual_seed(7)
    model = torch.nn.Linear(4, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    began = step = quorate.load() or 0
    subprocess.Popen(["sleep", "1000"])
    while step < int(sys.argv[1]):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == began + 5:
            quorate.save()
            print("going", flush=True)
            Path(f"pid-{world.rank}").write_text(str(os.getpid()))
        if step > began + 5:
            time.sleep(0.02)
        if "raises" in sys.argv and world.rank == 2 and step == 7:
            raise ValueError("of the test")
    optimizer.finish()
    print("ends at", step, os.environ.get("OF_THE_TEST"), flush=True)
    """
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamedHosts]:
    with ssh_hosts(2, tmp_path_factory.mktemp("ssh")) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def words(two: NamedHosts, *more: str) -> list[str]:
    ssh = f"ssh -F {config_in(two.folder)}"
    return [sys.executable, "-m", "quorate.cli.main", "run", "--ssh", ssh, "--name", "x", *more]


def begun(two: NamedHosts, folder: Path, *more: str, on: str = "first:2,second:1") -> subprocess.Popen[str]:
    """A training on two hosts that is under way."""
    child = two.popen(0, *words(two, "--hosts", on, *more), "train.py", "100000", folder=folder)
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line == "going\n", (line, child.communicate())
    until(lambda: all(pid_of(folder, rank) for rank in range(3 if "2" in on else 2)))
    return child


def pid_of(folder: Path, rank: int) -> int:
    """Of a worker that trains; 0 before."""
    written = (folder / f"pid-{rank}").read_text() if (folder / f"pid-{rank}").exists() else ""
    return int(written or 0)


def until(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return when it is."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def ended(child: subprocess.Popen[str], seconds: float = 40.0) -> tuple[int, str]:
    """The status of a launcher, and what it says."""
    try:
        _, said = child.communicate(timeout=seconds)
    finally:
        child.kill()
    return child.returncode, said


def test_a_run_and_its_resumption(two: NamedHosts, folder: Path) -> None:
    first = two.run(
        0, *words(two, "--hosts", "first:1,second:2", "--env", "OF_THE_TEST=7"), "train.py", "8", folder=folder
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout == "going\nends at 8 7\n"
    assert "rank 0 on first, 0\n" in first.stderr and "rank 1 on second" not in first.stderr
    logs = [(folder / "runs" / "x" / f"rank-{rank}.log").read_text() for rank in range(3)]
    assert "rank 1 on second, 0\ngoing\n" in logs[1] and "rank 2 on second, 1\ngoing\n" in logs[2]
    assert "going\nends at 8 7\n" in logs[0]
    assert json.loads((folder / "runs" / "x" / "outcome.json").read_text())["status"] == 0
    again = [sys.executable, "-m", "quorate.cli.main", "run", "--resume", "x"]
    second = two.run(0, *again, "train.py", "14", folder=folder)
    assert (second.returncode, second.stdout) == (0, "going\nends at 14 7\n"), second.stderr
    assert "quorate: resumed after step 5" in second.stderr
    assert left_on(two) == []


SETTINGS = {
    "NCCL_SOCKET_IFNAME": "eth0",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "10",
    "RCCL_TEST": "a b",
    "UCX_TLS": "tcp",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "HSA_FORCE_FINE_GRAIN_PCIE": "1",
}
SHOWS = """
import json, os, socket
names = ("NCCL_", "TORCH_NCCL_", "RCCL_", "UCX_", "CUDA_DEVICE_MAX", "HSA_", "OF_NOBODY")
with open(f"settings-{os.environ['RANK']}.json", "w") as file:
    json.dump([socket.gethostname(), {name: os.environ[name] for name in os.environ if name.startswith(names)}], file)
"""


def test_settings_of_nccl_reach_every_worker_of_every_host(two: NamedHosts, folder: Path) -> None:
    """A login by ssh brings none of them."""
    (folder / "shows.py").write_text(SHOWS)
    environment = {**os.environ, **SETTINGS, "OF_NOBODY": "1"}
    ended = two.run(0, *words(two, "--hosts", "first:1,second:2"), "shows.py", folder=folder, env=environment)
    assert ended.returncode == 0, ended.stderr
    shown = [json.loads((folder / f"settings-{rank}.json").read_text()) for rank in range(3)]
    assert [host for host, _ in shown] == ["first", "second", "second"]
    assert [settings for _, settings in shown] == [SETTINGS] * 3


def test_all_leave_when_asked(two: NamedHosts, folder: Path) -> None:
    child = begun(two, folder, on="first,second")
    child.send_signal(signal.SIGINT)
    assert ended(child)[0] == 130
    assert (folder / "runs" / "x" / "checkpoints").is_dir()
    assert left_on(two) == []


def test_an_error_is_told_as_on_one_host(two: NamedHosts, folder: Path) -> None:
    told = two.run(0, *words(two, "--hosts", "first:1,second:2"), "train.py", "99999", "raises", folder=folder)
    assert told.returncode == 1
    assert "quorate: rank 2 (host second) raised ValueError: of the test in round " in told.stderr
    assert "its log is runs/x/rank-2.log\n" in told.stderr
    assert "  | [rank2]: ValueError: of the test\n" in told.stderr
    assert left_on(two) == []


def test_a_death_is_told_as_on_one_host(two: NamedHosts, folder: Path) -> None:
    child = begun(two, folder)
    os.kill(pid_of(folder, 2), signal.SIGKILL)
    status, said = ended(child)
    assert status == 1
    assert "quorate: rank 2 (host second) was killed by signal 9 (SIGKILL)" in said
    assert left_on(two) == []


def test_a_death_is_outlived(two: NamedHosts, folder: Path) -> None:
    child = begun(two, folder, "--strategy", "quorum")
    os.kill(pid_of(folder, 2), signal.SIGKILL)
    assert child.stderr is not None
    expected = "quorate: rank 2 (host second) was killed by signal 9 (SIGKILL); ranks 0 and 1 go on\n"
    assert expected in iter(child.stderr.readline, "")
    child.send_signal(signal.SIGINT)
    assert ended(child)[0] == 130
    assert left_on(two) == []


DIES_AT_ONCE = """
import os, signal, time, torch, quorate

world = quorate.join(timeout=60)
model = torch.nn.Linear(4, 1)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy="quorum")
if world.rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
for _ in range(20):
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
optimizer.finish()
"""


def test_a_death_right_behind_distribute_is_outlived_and_good_ends_are_none(two: NamedHosts, folder: Path) -> None:
    (folder / "dies.py").write_text(DIES_AT_ONCE)
    told = two.run(0, *words(two, "--hosts", "first:1,second:2", "dies.py"), folder=folder)
    ended = [line for line in told.stderr.splitlines() if line.startswith("quorate: rank ")]
    assert told.returncode == 0, told.stderr
    assert ended == ["quorate: rank 2 (host second) was killed by signal 9 (SIGKILL); ranks 0 and 1 go on"]


def test_nobody_outlives_a_launcher_that_was_killed(two: NamedHosts, folder: Path) -> None:
    child = begun(two, folder, on="first,second")
    child.kill()
    child.communicate()
    until(lambda: left_on(two) == [])


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_named(two: NamedHosts, folder: Path) -> None:
    """The launcher ends, and so do the workers there, by themselves."""
    child = begun(two, folder)
    two.all[1].cut()
    try:
        status, said = ended(child, 60.0)
        assert status == 1
        assert "quorate: rank 2 (host second) was" in said, said
        until(lambda: left_on(two) == [], 60.0)  # sshd itself may wait for the launcher for much longer
    finally:
        two.all[1].heal()


def test_a_host_that_is_not_there_is_named(two: NamedHosts, folder: Path) -> None:
    told = two.run(0, *words(two, "--hosts", "first,nowhere:2"), "train.py", "8", folder=folder)
    assert told.returncode == 2
    assert told.stderr.splitlines()[-1].startswith("quorate: host nowhere cannot be reached by ssh: ")
    assert left_on(two) == []


def test_a_host_without_quorate_is_named(two: NamedHosts, folder: Path) -> None:
    """A login shell that finds no such Python says so."""
    fails = folder / "fails.sh"
    fails.write_text("#!/bin/sh\necho hello from the login shell\necho 'sh: no such python' >&2\nexit 127\n")
    fails.chmod(0o755)
    words = [sys.executable, "-m", "quorate.cli.main", "run", "--ssh", str(fails), "--hosts", "b:2", "train.py"]
    told = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2
    last = told.stderr.splitlines()[-1]
    assert last.startswith("quorate: quorate cannot be started on host b with ") and last.endswith("no such python")
