"""`quorate run` from outside, with scripts that join: real workers, virtual ones, and a death in the middle."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.support.programs import quorate

MEAN = """
import os, sys
import quorate
world = quorate.join()
print(f"{world.rank} of {world.size}: {world.mean(float(world.rank))} {sys.argv[1:]}")
"""

DEATH = """
import os, signal, time
import torch
import quorate
world = quorate.join()
for step in range(100):
    if step == 3 and world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.mean(torch.ones(10))
"""

RAISES = """
import quorate
world = quorate.join()
if world.rank == 2:
    raise ValueError("bad batch")
world.barrier()
"""

MISMATCH = """
import torch
import quorate
world = quorate.join()
world.wire.all_reduce(torch.ones(2 + world.rank)).wait()
"""


def quorate_run(
    folder: Path, script: str, *options: str, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(textwrap.dedent(script))
    return quorate(folder, "run", "--name", "here", *options, "train.py", *arguments)


@pytest.mark.parametrize("options", [("-n", "2"), ("--virtual", "2"), ("-n", "1"), ()])
def test_the_same_script_joins_each_kind_of_world(tmp_path: Path, options: tuple[str, ...]) -> None:
    finished = quorate_run(tmp_path, MEAN, *options, arguments=("--lr", "3"))
    size = 2 if "2" in options else 1
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == f"0 of {size}: {(size - 1) / 2} ['--lr', '3']\n"
    kept = tmp_path / "runs" / "here"
    of_ranks = {f"rank-{rank}.{kind}" for rank in range(size) for kind in ("log", "jsonl")}
    assert {path.name for path in kept.iterdir()} == {"run.json", "outcome.json", *of_ranks}
    assert (kept / f"rank-{size - 1}.log").read_text() == f"{size - 1} of {size}: {(size - 1) / 2} ['--lr', '3']\n"


def test_a_killed_worker_stops_the_others_with_one_sentence(tmp_path: Path) -> None:
    finished = quorate_run(tmp_path, DEATH, "-n", "3")
    assert finished.returncode == 1
    lines = finished.stderr.splitlines()
    assert lines[1].startswith("quorate: rank 1 (host ")  # what rank 0 says on leaving
    assert lines[-2].endswith("was killed by signal 9 (SIGKILL); its log is runs/here/rank-1.log")
    assert lines[-1] == "After that ranks 0 and 2 exited with status 1."
    assert "Traceback" not in finished.stderr


def test_an_exception_is_the_cause_and_its_traceback_is_shown(tmp_path: Path) -> None:
    finished = quorate_run(tmp_path, RAISES, "-n", "3")
    assert finished.returncode == 1
    assert "raised ValueError: bad batch; its log is runs/here/rank-2.log" in finished.stderr
    assert 'raise ValueError("bad batch")' in finished.stderr
    assert finished.stderr.splitlines()[-1] == "After that ranks 0 and 1 exited with status 1."


def test_workers_that_call_different_things_are_told_so(tmp_path: Path) -> None:
    finished = quorate_run(tmp_path, MISMATCH, "-n", "2")
    assert finished.returncode == 1
    assert "quorate: workers called different things at the same place" in finished.stderr
    assert "the logs are in runs/here" in finished.stderr


@pytest.mark.parametrize("options", [("-n", "2"), ("--virtual", "2")])
def test_a_strategy_from_outside_reaches_the_script(tmp_path: Path, options: tuple[str, ...]) -> None:
    script = """
    import torch
    import quorate
    world = quorate.join()
    model = torch.nn.Linear(2, 1)
    quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy="no such strategy")
    print("distributed")
    """
    finished = quorate_run(tmp_path, script, "--strategy", "all-reduce", *options)
    assert (finished.returncode, finished.stdout) == (0, "distributed\n"), finished.stderr
