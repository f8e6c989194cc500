"""Workers that mpirun of Open MPI starts: on one host, and on two, which it reaches by ssh; nothing is said to them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.architecture.tree import ROOT
from tests.support.named_hosts import NamedHosts, missing
from tests.support.ssh_hosts import config_in, ssh_hosts

pytestmark = [pytest.mark.launchers, pytest.mark.skipif(bool(why := missing("mpirun", "sshd", "ssh")), reason=str(why))]

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
SCRIPT_FOR_DDP = ROOT / "tests" / "support" / "ddp_scripts" / "gan.py"
SCRIPT = textwrap.dedent(
    """
    import socket, sys, torch, quorate

    world = quorate.join(timeout=60, records=False)
    torch.manual_seed(world.rank)
    model = torch.nn.Linear(4, 2)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(3):
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    equal = len(set(world.gather(model.weight.double().sum().item()))) == 1
    if world.is_first:
        print(world.size, equal, world.gather(socket.gethostname()), flush=True)
    else:
        world.gather(socket.gethostname())
    if "fail" in sys.argv and world.rank == 1:
        raise ValueError("of the test")
    """
)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamedHosts]:
    with ssh_hosts(3, tmp_path_factory.mktemp("ssh")) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def on_hosts(three: NamedHosts, listed: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What mpirun does that is started on the host `first`."""
    reached = ["--mca", "plm_rsh_args", f"-F {config_in(three.folder)}", "--host", listed, "-x", "PYTHONPATH"]
    return three.run(0, *MPIRUN, *reached, *words, sys.executable, "train.py", folder=folder, env=os.environ)


def test_on_one_host(folder: Path) -> None:
    words = [*MPIRUN, "-n", "3", sys.executable, "train.py"]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout.split(" [")[0]) == (0, "3 True"), ended.stderr


def test_on_two_hosts(three: NamedHosts, folder: Path) -> None:
    ended = on_hosts(three, "second:2,first:2", folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "4 True ['first', 'first', 'second', 'second']\n"


def test_on_other_hosts_than_that_of_mpirun(three: NamedHosts, folder: Path) -> None:
    ended = on_hosts(three, "second:1,third:1", folder)
    assert ended.returncode != 0
    assert (
        "quorate: rank 0 is on second, and mpirun runs on another host (10.231.77.1); set MASTER_ADDR" in ended.stderr
    )
    ended = on_hosts(three, "second:1,third:1", folder, "-x", "MASTER_ADDR=second")
    assert (ended.returncode, ended.stdout) == (0, "2 True ['second', 'third']\n"), ended.stderr


def test_a_script_for_ddp_trains_unchanged(tmp_path: Path) -> None:
    words = [
        *MPIRUN,
        "-n",
        "2",
        sys.executable,
        "-m",
        "quorate.run",
        "--strategy",
        "eager-majority",
        str(SCRIPT_FOR_DDP),
    ]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    first, second = (torch.load(tmp_path / f"state-{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
