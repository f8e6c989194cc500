"""Records, logs and checkpoints on a disk that is full from some step on: the training ends well all the same."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorate.core.telling import flush, tell
from quorate.launch.warm.forks import CAN_FORK
from quorate.launch.warm.request import RunRequest
from quorate.launch.warm.run_server import RunServer

SCRIPT = """
import os
from pathlib import Path
import torch
import quorate

world = quorate.join(timeout=200.0)
model = torch.nn.Linear(100, 200)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model, {strategy!r})
quorate.load()
for step in range(40):
    model(torch.randn(4, 100)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 3:
        quorate.save()
optimizer.finish()
(Path(__file__).parent / f"finished-{{world.rank}}").write_text(str(step))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for one megabyte."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("a disk of one megabyte can be mounted by root on Linux only")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False)
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(not CAN_FORK, reason="a process that has imported torch cannot be forked here")
@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority"])
def test_a_full_disk_ends_no_training(tmp_path: Path, small_disk: Path, server: RunServer, strategy: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(strategy=strategy))
    (small_disk / "run").mkdir()
    (small_disk / "taken").write_bytes(b"x" * 700_000)
    request = RunRequest(script=str(tmp_path / "script.py"), size=3, folder=small_disk / "run")
    ended = server.start(request).wait(100.0)
    assert ended is not None
    assert (ended.status, ended.why) == (0, None)
    assert [(tmp_path / f"finished-{rank}").read_text() for rank in range(3)] == ["39"] * 3
    assert os.statvfs(small_disk).f_bavail < 50, "the disk is full, or this is no test"


class Full(io.StringIO):
    """A stream whose disk is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("kind", [Full(), None, "closed"])
def test_what_cannot_be_told_is_left_out(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    if kind == "closed":
        kind = io.StringIO()
        kind.close()
    monkeypatch.setattr(sys, "stderr", kind)
    monkeypatch.setattr(sys, "stdout", kind)
    tell("something\n")
    flush()
