"""`quorate compare` from outside: real and virtual comparisons end with a report, and interrupted ones can go on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.launching import LIMIT, is_running, until
from tests.support.programs import QUORATE, Program, quorate

STAYS = """
import os, sys, time
from pathlib import Path

here, rank = Path(sys.argv[1]), os.environ["RANK"]
if os.environ["QUORATE_STRATEGY"] == "all-reduce" and not (here / "go").exists():
    (here / f"pid-{rank}").write_text(str(os.getpid()))
    (here / f"launcher-{rank}").write_text(str(os.getppid()))
    time.sleep(600)
if (here / f"fail-{os.environ['QUORATE_SEED']}").exists() and rank == "1":
    raise ValueError("of the script")
import torch, quorate

quorate.join()
model = torch.nn.Linear(1, 1)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts a comparison of ddp and all-reduce, of which the second stays until there is a file `go`."""
    begun: list[Program] = []

    def start(*arguments: str) -> Program:
        (tmp_path / "train.py").write_text(STAYS)
        options = ["compare", "-n", "2", "--baseline", "ddp", "--seeds", "1", "--name", "x", *arguments]
        command = [*QUORATE, *options, "train.py", str(tmp_path)]
        begun.append(Program(command, cwd=tmp_path))
        return begun[-1]

    yield start
    for one in begun:
        one.kill()
        one.communicate()


def _pids(tmp_path: Path) -> list[int]:
    paths = [tmp_path / name for name in ("pid-0", "pid-1", "launcher-0")]
    until(lambda: all(path.exists() and path.read_text() for path in paths), "the workers")
    return [int(path.read_text()) for path in paths]


def test_two_strategies_on_a_workload(tmp_path: Path) -> None:
    options = ["-n", "2", "--baseline", "ddp", "--epochs", "2", "--seeds", "1,2", "--name", "x", "--target", "0.5"]
    done = quorate(tmp_path, "compare", *options, "--json", "least-squares")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [arm["name"] for arm in summary["arms"]] == ["ddp", "all-reduce"]
    quality = [arm["quality"]["values"] for arm in summary["arms"]]
    assert quality[0] == quality[1], "at two workers both give the same bits"
    assert len(quality[0]) == 2
    assert all(arm["examples_per_second"]["mean"] > 0 for arm in summary["arms"])
    loads = [run["load"] for arm in summary["arms"] for run in arm["runs"]]
    assert all(0.0 < load["used"] <= load["cores"] for load in loads), "the load of the host is known for every run"
    made = tmp_path / "runs" / "x"
    assert {"compare.json", "summary.json", "summary.md", "report.html"} <= {path.name for path in made.iterdir()}
    (made / "report.html").unlink()
    again = quorate(tmp_path, "report", "x")
    assert (again.returncode, again.stdout) == (0, "runs/x/report.html\n")
    assert (made / "report.html").is_file()


def test_a_virtual_comparison_with_a_search_for_learning_rates(tmp_path: Path) -> None:
    options = ["--virtual", "3", "--epochs", "6", "--seeds", "1", "--name", "x", "--imbalance", "rank:2:20ms"]
    options += ["--strategy", "all-reduce"]
    done = quorate(tmp_path, "compare", *options, "--tune-lr=0.5,1", "least-squares")
    assert done.returncode == 0, done.stderr
    assert "all-reduce reaches squared_error" in done.stdout
    assert "report: runs/x/report.html" in done.stdout
    summary = json.loads((tmp_path / "runs" / "x" / "summary.json").read_text())
    assert [(trial["factor"], trial["seed"]) for trial in summary["tuning"]] == [(0.5, 1), (1.0, 1)]
    assert [trial["is_chosen"] for trial in summary["tuning"]].count(True) == 1
    assert summary["arms"][0]["arrival"]["slow_rank"] == 2


def test_runs_that_fail_are_told_and_the_page_is_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STAYS)
    for name in ("go", "fail-1"):
        (tmp_path / name).touch()
    options = ["-n", "2", "--baseline", "ddp", "--seeds", "0,1", "--name", "x"]
    done = quorate(tmp_path, "compare", *options, "train.py", str(tmp_path))
    assert done.returncode == 1
    assert "all-reduce, seed 1: failed with status 1: rank 1 (host " in done.stderr
    assert "  | ValueError: of the script" in done.stderr
    assert "ddp, seed 0: " in done.stderr
    assert "caution: ddp, seed 1, failed with status 1: rank 1 (host " in done.stdout
    assert (tmp_path / "runs" / "x" / "report.html").is_file()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_an_interrupted_comparison_can_be_gone_on_with(
    tmp_path: Path, begin: Callable[..., Program], signum: signal.Signals
) -> None:
    comparing = begin()
    pids = _pids(tmp_path)
    other = quorate(tmp_path, "compare", "--continue", "x")
    assert other.returncode == 2
    assert other.stderr.endswith("quorate: the comparison in runs/x is under way in another process\n")
    comparing.send_signal(signum)
    _, said = comparing.communicate(timeout=LIMIT)
    assert comparing.returncode == (75 if signum == signal.SIGUSR1 else 130)
    assert said.endswith("quorate: interrupted; continue with: quorate compare --continue runs/x\n")
    assert not any(is_running(pid) for pid in pids)
    made = tmp_path / "runs" / "x"
    assert (made / "report.html").is_file()
    assert (made / "ddp" / "seed-0" / "outcome.json").is_file()
    assert not (made / "all-reduce" / "seed-0" / "outcome.json").exists()
    if signum == signal.SIGINT:
        (tmp_path / "go").touch()
        done = quorate(tmp_path, "compare", "--continue", "runs/x")
        assert done.returncode == 0, done.stderr
        assert "[1/1] all-reduce, seed 0: " in done.stderr
        assert (made / "all-reduce" / "seed-0.interrupted-1" / "rank-0.log").is_file()


def test_nobody_outlives_a_comparison_that_is_killed(tmp_path: Path, begin: Callable[..., Program]) -> None:
    comparing = begin()
    pids = _pids(tmp_path)
    comparing.kill()
    until(lambda: not any(is_running(pid) for pid in pids), "the end of the workers and their launcher")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    done = quorate(tmp_path, "compare", "-n", "2", "--name", "x", "least-squares")
    assert done.returncode == 2
    assert done.stderr.startswith("quorate: cannot make the folder runs/x for the records of this run: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk here that is always full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    options = ["--virtual", "2", "--epochs", "1", "--seeds", "1", "--name", "x", "least-squares"]
    assert quorate(tmp_path, "compare", *options).returncode == 0
    (tmp_path / "runs" / "x" / "compare.json.new").symlink_to("/dev/full")
    done = quorate(tmp_path, "compare", "--continue", "x")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "quorate: No space left on device (runs/x); fix this, then continue with: quorate compare --continue runs/x"
    )
