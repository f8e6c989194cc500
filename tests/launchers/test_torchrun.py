"""Under torchrun a gang that is started anew goes on from the newest checkpoint, with nothing said to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.architecture.tree import ROOT
from tests.support.hosts import hosts
from tests.support.named_hosts import NamedHosts, missing

pytestmark = pytest.mark.launchers

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SCRIPT_FOR_DDP = ROOT / "tests" / "support" / "ddp_scripts" / "gan.py"
SCRIPT = textwrap.dedent(
    """
    import os, sys, time, torch, quorate
    from pathlib import Path

    world = quorate.join(timeout=60)
    torch.manual_seed(7)
    model = torch.nn.Linear(4, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, "all-reduce")
    step = quorate.load()
    sys.stdout.write(f"begins at {step} with {world.size}\\n")
    sys.stdout.flush()
    step = step or 0
    while step < int(sys.argv[1]):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        quorate.save()
        if world.is_first:
            Path("step").write_text(str(step))
        if len(sys.argv) > 2:
            time.sleep(float(sys.argv[2]))
        if step == 5 and world.rank == 1 and not Path("died").exists():
            Path("died").touch()
            os._exit(7)
    optimizer.finish()
    sys.stdout.write(f"ends at {step}\\n")
    """
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_restarted_gang_goes_on(folder: Path) -> None:
    words = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", "--master-port", "29583", "train.py", "12"]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr
    first, second, *others = re.findall(r"begins at (\w+) with 2", ended.stdout)
    assert first == second == "None" and len(others) == 2 and others[0] == others[1], ended.stdout
    assert 0 < int(others[0]) <= 5
    assert ended.stdout.count("ends at 12") == 2
    assert len(re.findall(r"quorate: 12 steps in .*; records in runs/", ended.stderr)) == 1, ended.stderr
    assert len(list((folder / "runs").iterdir())) == 1


@pytest.mark.timeout(280)
@pytest.mark.skipif(bool(why := missing("ip")), reason=str(why))
def test_hosts_come_and_go(folder: Path) -> None:
    """One of two is lost, and later another one comes: each time all begin anew from where they were."""
    quick = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
    elastic = ["--nnodes", "1:3", "--max-restarts", "5", "--rdzv-backend", "c10d", "--rdzv-id", "7"]
    words = [*TORCHRUN, *elastic, "--rdzv-endpoint", "first:29400", "--rdzv-conf", quick, "train.py", "1000000", "0.05"]
    env = {**os.environ, "QUORATE_TOKEN": "a secret that is long enough", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    (folder / "died").touch()
    with hosts(3) as found:
        named = NamedHosts(found, folder)
        first = named.popen(0, *words, folder=folder, env=env)
        logs = [first]

        def comes(number: int) -> None:
            logs.append(named.popen(number, *words, folder=folder, env=env))

        try:
            comes(1)
            assert first.stdout is not None
            shown = Shown(first)
            shown.until("begins at None with 2")
            until(lambda: step_in(folder) > 10)
            found[1].lose()
            alone = shown.until("with 1")
            until(lambda: step_in(folder) > alone + 10)
            comes(2)
            assert shown.until("with 2") > alone
        finally:
            for child in logs:
                child.kill()
                child.communicate()
    assert len(list((folder / "runs").iterdir())) == 1


class Shown:
    """What a process prints, as it comes."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def until(self, words: str) -> int:
        """The step in the first line that ends with `words`; -1 where it has none."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.strip().endswith(words):
                step = line.split()[2]
                return int(step) if step.isdecimal() else -1
        raise AssertionError(f"it ended without {words!r}: {self._child.communicate()}")


def step_in(folder: Path) -> int:
    """How far the training is."""
    written = (folder / "step").read_text() if (folder / "step").exists() else ""
    return int(written) if written.isdecimal() else 0


def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when it is."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_script_for_ddp_trains_unchanged(tmp_path: Path) -> None:
    words = [
        *TORCHRUN,
        "--nproc-per-node",
        "2",
        "--master-port",
        "29584",
        "-m",
        "quorate.run",
        "--strategy",
        "d-psgd",
        str(SCRIPT_FOR_DDP),
    ]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    first, second = (torch.load(tmp_path / f"state-{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
