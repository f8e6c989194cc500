"""`--resume`: what the run was started with, unless the command says otherwise; its records are only appended to."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from quorate.cli.resume import options_of
from quorate.cli.run import RunOptions
from tests.support.programs import quorate

SCRIPT = """
import os, sys, torch, quorate
quorate.join()
model = torch.nn.Linear(1, 1)
quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
print(os.environ["RANK"], sys.argv[1:], flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    about = {
        "script": "train.py", "arguments": ["--limit", "3"], "is_module": False, "workers": 2, "world": "real",
        "strategy": "quorum", "settings": {"wait_for": "majority", "grace": 0.25}, "seed": 4, "imbalance": None,
        "pace": None, "share": "static", "seconds_limit": 2, "folder": str(tmp_path),
    }  # fmt: skip
    (run / "run.json").write_text(json.dumps(about))
    (run / "rank-0.log").write_text("before\n")
    (run / "outcome.json").write_text('{"status": 1}')
    return tmp_path


def test_the_options_are_the_runs_unless_told(folder: Path) -> None:
    said = json.loads(quorate(folder, "run", "--resume", "first", "--dry-run", "--json").stdout)
    assert (said["script"], said["arguments"], said["workers"], said["world"]) == (
        "train.py", ["--limit", "3"], 2, "real",
    )  # fmt: skip
    assert (said["strategy"], said["settings"]) == ("quorum", {"wait_for": "majority", "grace": 0.25})
    assert (said["seed"], said["share"], said["seconds_limit"], said["records"]) == (4, "static", 2, "runs/first")
    said = json.loads(quorate(folder, "run", "--resume", "runs/first", "-n", "3", "--dry-run", "--json").stdout)
    assert (said["workers"], said["seed"]) == (3, 4)


def test_a_virtual_run_resumes_on_its_network(folder: Path) -> None:
    words = [
        "run",
        "--virtual",
        "2",
        "--latency",
        "50us",
        "--bandwidth",
        "1GB",
        "--seconds",
        "9",
        "--dry-run",
        "--json",
    ]
    about = quorate(folder, *words, "train.py").stdout
    (folder / "runs" / "first" / "run.json").write_text(about)
    resumed = json.loads(quorate(folder, "run", "--resume", "first", "--dry-run", "--json").stdout)
    assert resumed == {**json.loads(about), "records": "runs/first"}


def test_values_of_a_wrong_type_are_left_out(tmp_path: Path) -> None:
    about = {
        "script": "train.py", "arguments": "x", "world": "real", "workers": "2", "seed": True, "zero": 2, "share": 3,
        "env": ["A=1"], "hosts": None, "seconds_limit": "9", "latency": None, "chaos": 3, "log": "none",
    }  # fmt: skip
    assert options_of(tmp_path, about, RunOptions) == {
        "script": "train.py", "arguments": [], "zero": 2, "env": ["A=1"], "seconds": "9",
    }  # fmt: skip
    on_hosts = {"script": "train.py", "world": "real", "workers": 4, "hosts": "a:2,b:2"}
    assert options_of(tmp_path, on_hosts, RunOptions) == {"script": "train.py", "arguments": [], "hosts": "a:2,b:2"}


def test_its_records_are_only_appended_to(folder: Path) -> None:
    run = folder / "runs" / "first"
    assert quorate(folder, "run", "--resume", "first").returncode == 0
    assert (run / "rank-0.log").read_text() == "before\n0 ['--limit', '3']\n"
    assert json.loads((run / "outcome-1.json").read_text()) == {"status": 1}
    assert json.loads((run / "outcome.json").read_text())["status"] == 0
    (row,) = (run / "resumed.jsonl").read_text().splitlines()
    assert json.loads(row)["workers"] == 2


def test_wrong_input_is_one_sentence(folder: Path) -> None:
    (folder / "runs" / "odd").mkdir()
    (folder / "runs" / "odd" / "run.json").write_text("[]")
    for arguments, words in (
        (["--resume", "second"], 'there is no run "second" to resume'),
        (["--resume", "odd"], "runs/odd was not started by quorate run"),
        (["--resume", "first", "--name", "x"], "--resume continues in the run's own folder; leave out --name"),
    ):
        finished = quorate(folder, "run", *arguments)
        assert finished.returncode == 2
        assert finished.stderr.startswith(f"quorate: {words}")
        assert finished.stderr.count("\n") == 1


def test_a_run_that_is_going_on_is_left_alone(folder: Path) -> None:
    handle = os.open(folder / "runs" / "first", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        finished = quorate(folder, "run", "--resume", "first")
    finally:
        os.close(handle)
    assert (finished.returncode, finished.stderr.count("\n")) == (2, 1)
    assert "the run in runs/first is still going on" in finished.stderr
    assert not (folder / "runs" / "first" / "resumed.jsonl").exists()
