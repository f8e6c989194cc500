"""Each verb that starts processes, once as users start it: the console script, with nothing imported before.

`plan` is started so in `tests/unit/cli/test_plan.py`, where an interrupt ends it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support import programs
from tests.support.launching import LIMIT, until

QUORATE = str(Path(sys.executable).with_name("quorate"))
SCRIPT = """
import sys, time
from pathlib import Path
import torch, quorate

world = quorate.join()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, "quorum")
quorate.load()
loader = quorate.loader(torch.utils.data.TensorDataset(torch.ones(64, 4)), 2)
epochs_together = 0
for epoch in range(loader.epoch, 1000):
    for (inputs,) in loader:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
    quorate.save()  # a newcomer has no part in it
    with world.evaluate():
        size = len(world.gather(world.rank))
    Path(f"trains-{world.rank}").touch()
    epochs_together += str(size) == sys.argv[1]
    if epochs_together == 4:
        break
optimizer.finish()
print("the end of", world.rank, flush=True)
"""


def quorate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([QUORATE, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.slow
def test_a_run_is_joined_and_resumed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [QUORATE, "run", "-n", "2", "--max-joins", "1", "--name", "x", "train.py", "3"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            until((tmp_path / "trains-0").exists, "the training")
            joined = quorate(tmp_path, "join", "x")
            assert (joined.returncode, "rank 2 has joined runs/x" in joined.stdout) == (0, True), joined.stderr
            out, err = run.communicate(timeout=LIMIT)
        finally:
            run.kill()
    assert (run.returncode, out) == (0, "the end of 0\n"), err
    assert "the end of 2" in (tmp_path / "runs" / "x" / "rank-2.log").read_text()
    resumed = programs.quorate(tmp_path, "run", "--resume", "x", "-n", "1", "train.py", "1")
    assert (resumed.returncode, resumed.stdout) == (0, "the end of 0\n"), resumed.stderr


@pytest.mark.slow
def test_strategies_are_compared(tmp_path: Path) -> None:
    done = quorate(
        tmp_path, "compare", "-n", "2", "--strategy", "quorum", "--epochs", "1", "--seeds", "1", "least-squares"
    )
    assert done.returncode == 0, done.stderr
    assert "report: " in done.stdout


def test_times_are_simulated(tmp_path: Path) -> None:
    done = quorate(
        tmp_path, "simulate", "-n", "4", "--parameters", "1M", "--steps", "5", "--strategy", "quorum", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["strategy"] == "quorum"


@pytest.mark.slow
def test_rates_stand_beside_those_of_torch(tmp_path: Path) -> None:
    done = quorate(tmp_path, "bench", "--json", "--from", "64B", "--to", "128B", "--repeat-for", "1ms")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["network"], answer["backend"], answer["workers"]) == ("shared memory", "gloo", 2)
    rows = [(row["operation"], row["size"], row["way"]) for row in answer["rows"]]
    operations = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "round")
    assert rows == [(name, size, way) for name in operations for size in (64, 128) for way in ("quorate", "gloo")]
    assert all(row["error"] == 0.0 and row["seconds"] > 0.0 for row in answer["rows"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_machine_is_examined(tmp_path: Path) -> None:
    done = quorate(tmp_path, "doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert [findings[name]["level"] for name in ("torch", "quorate run")] == ["OK", "OK"], done.stderr
    assert f"{torch.__version__}, Python {sys.version.split()[0]}" in findings["torch"]["found"]
    assert list(tmp_path.iterdir()) == []
