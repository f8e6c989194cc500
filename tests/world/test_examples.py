"""The examples train: each on three virtual workers, to a figure it prints, and all workers end equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quorate.launch.virtual.run import run_script
from quorate.launch.warm.forks import CAN_FORK
from quorate.launch.warm.request import RunRequest
from quorate.launch.warm.run_server import RunServer
from tests.architecture.tree import ROOT

CHECK = """
import torch as _torch
_models = [each for each in list(globals().values()) if isinstance(each, _torch.nn.Module)]
assert _models
for _model in _models:
    _all = world.gather(_torch.cat([each.detach().reshape(-1) for each in _model.state_dict().values()]))
    assert all(_torch.equal(each, _all[0]) for each in _all), "replicas differ"
"""
CASES = {
    "adapters": (["--epochs", "4", "--points", "2048"], r"accuracy ([\d.]+), merged to \de-0[6-9]", 0.85, 1.0),
    "plain_loop": (["--epochs", "4", "--points", "2048"], r"epoch 3: accuracy ([\d.]+)", 0.85, 1.0),
    "scaler_and_accumulation": (["--epochs", "3", "--points", "2048"], r"epoch 2: loss ([\d.]+)", 0.0, 0.35),
    "gan": (["--epochs", "5", "--points", "2048"], r"epoch 4: ([\d.]+) off the circle", 0.0, 0.4),
    "moving_averages": ([], r"tensor\(\[\[(-?[\d.]+)\]\]\)", -2.0, 2.0),
    "muon": (["--epochs", "4", "--points", "2048"], r"epoch 3: accuracy ([\d.]+)", 0.85, 1.0),
    "thawing": (["--epochs", "4", "--points", "2048"], r"epoch 3: accuracy ([\d.]+)", 0.85, 1.0),
    "early_stopping": (
        ["--epochs", "8", "--points", "2048"],
        r"ended after \d+ better epochs: loss ([\d.]+)",
        0.0,
        0.5,
    ),
    "train": (["--workload", "least-squares", "--limit", "0"], r"epoch 0 squared_error ([\d.]+)", 0.0, 1.0),
}
"""By example: arguments, the line that is looked for, and what the figure in it may be."""


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_it_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, line, least, most = CASES[name]
    monkeypatch.chdir(tmp_path)
    script = tmp_path / f"{name}.py"
    script.write_text((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8") + CHECK)
    status = run_script(script, arguments, 3, run_dir=tmp_path / "logs")
    told = (tmp_path / "logs" / "rank-0.log").read_text()
    assert status == 0, told
    found = re.search(line, told)
    assert found, told
    assert least <= float(found[1]) <= most


@pytest.mark.skipif(not CAN_FORK, reason="a process that has imported torch cannot be forked here")
def test_they_train_in_processes(tmp_path: Path, server: RunServer) -> None:
    """One after the other, in the same two processes."""
    trained = sorted(set(CASES) - {"train"})
    script = tmp_path / "all.py"
    script.write_text(f"""
import os, runpy, sys
import torch
import quorate
os.chdir({str(tmp_path)!r})  # where an example keeps its data
for name in {trained!r}:
    sys.argv = [name, "--epochs", "1", "--points", "256"]
    made = runpy.run_path({str(ROOT / "examples")!r} + f"/{{name}}.py", run_name="__main__")
    for thing in made.values():
        if isinstance(thing, torch.nn.Module):
            digests = quorate.join().gather(torch.cat([each.detach().reshape(-1) for each in thing.parameters()]))
            assert all(torch.equal(each, digests[0]) for each in digests)
            print("equal replicas in", name)
""")
    ended = server.start(RunRequest(script=str(script), size=2, folder=tmp_path)).wait(100.0)
    told = (tmp_path / "rank-0.log").read_text()
    assert ended is not None and ended.status == 0, told
    assert sorted(re.findall(r"equal replicas in (\w+)", told)) == sorted(
        [*trained, *2 * ["adapters"], "gan", "moving_averages", "thawing"]
    ), "these have several"


def test_the_commands_it_begins_with_name_it() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        commands = [
            text for text in path.read_text(encoding="utf-8").splitlines() if re.match("(python|quorate) ", text)
        ]
        assert commands
        assert all(f"examples/{path.name}" in command for command in commands)
