"""Migration pages: each script after runs, and that of DDP prints the same losses before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.cli.migrate import migrated
from quorate.launch.local.processes import free_port
from quorate.launch.virtual.run import run_script
from tests.architecture.test_documents import blocks
from tests.architecture.tree import ROOT
from tests.support.launching import LIMIT
from tests.support.programs import Program, quorate
from tests.world.test_documents import needed

PAGES = ("ddp", "deepspeed", "accelerate", "torchft")


def page(name: str) -> Path:
    return ROOT / "docs" / "howto" / f"migrate-{name}.md"


def script(name: str, side: str) -> str:
    """Return the script of a page's diff: `-` gives the one before, `+` the one after."""
    (diff,) = blocks(page(name), "diff")
    return "\n".join(line[1:] for line in diff.splitlines() if line[:1] in ("", " ", side)) + "\n"


def losses_before(text: str, folder: Path, python: str = sys.executable, limit: float = LIMIT) -> list[str]:
    """Return the printed losses of two processes on CPUs, with the environment of torchrun, within `limit` seconds."""
    (folder / "before.py").write_text(text)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    shared |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    begin: Any = partial(subprocess.Popen, [python, "before.py"], **pipes)
    if python == sys.executable:
        begin = partial(Program, ["before.py"])
    workers = [
        begin(cwd=folder, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=limit) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.wait() for worker in workers] == [0, 0], outputs
    return printed(outputs[0][0])


def losses_after(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (folder / "after.py").write_text(text)
    monkeypatch.setenv("QUORATE_RUN", str(folder / "run"))
    status = run_script(folder / "after.py", size=2, run_dir=folder / "logs")
    log = folder / "logs" / "rank-0.log"
    output = log.read_text() if log.exists() else ""
    assert status == 0, output
    return printed(output)


def printed(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("epoch ")]


def check_equal(before: list[str], after: list[str]) -> None:
    assert len(before) == len(after) == 3
    ours, theirs = ([float(line.rpartition(" ")[2]) for line in lines] for lines in (after, before))
    assert ours == pytest.approx(theirs, abs=2e-6)
    assert ours[2] < ours[0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", PAGES)
def test_the_script_after_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile(script(name, "-"), "before.py", "exec")
    losses_after(script(name, "+"), folder, monkeypatch)


def test_ddp_has_the_same_losses_and_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = losses_before(script("ddp", "-"), folder)
    old = torch.load(folder / "model.pt", weights_only=True)
    check_equal(before, losses_after(script("ddp", "+"), folder, monkeypatch))
    new = torch.load(folder / "model.pt", weights_only=True)
    assert list(old) == list(new)
    for key in old:
        torch.testing.assert_close(new[key], old[key], atol=1e-6, rtol=0)


def test_the_page_shows_what_the_verb_prints() -> None:
    (config,) = blocks(page("deepspeed"), "json")
    made = migrated(json.loads(config))
    assert blocks(page("deepspeed"), "python") == [made.code + "\n"]
    assert len(made.notes) == 1


def test_what_the_verb_prints_runs(folder: Path) -> None:
    (code,) = blocks(page("deepspeed"), "python")
    model = "import torch\nmodel = torch.nn.Linear(4, 1)\n"
    (folder / "train.py").write_text("\n".join([model, *needed(model + code), code]))
    done = quorate(folder, "run", "-n", "2", "train.py")
    assert done.returncode == 0, done.stderr


def test_the_client_of_flower_is_python() -> None:
    (before,) = blocks(page("flower"), "py")
    compile(before, "before.py", "exec")
